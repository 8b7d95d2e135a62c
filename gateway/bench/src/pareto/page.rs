//! The page: the picture, its legend and tips as a reader can touch them, and the figures as a table.

use super::scale::number;
use super::svg::{STYLE, colour, draw, escape};
use super::{PlotPoint, Series};
use std::fmt::Write;

const TEMPLATE: &str = include_str!("page.html");

/// The whole page.
pub fn html(all: &[Series]) -> String {
    // The figures last: names in them must not be taken for places of the template.
    TEMPLATE
        .replace("/*STYLE*/", STYLE)
        .replace("<!--PICTURE-->", &draw(all))
        .replace("<!--ROWS-->", &rows(all))
}

fn rows(all: &[Series]) -> String {
    let mut out = String::new();
    for (index, series) in all.iter().enumerate() {
        for point in &series.points {
            let PlotPoint { per_user, per_gpu, mark, settings, latencies, frontier } = point;
            let _ = write!(
                out,
                "<tr data-series=\"{index}\"><td><i style=\"background:{}\"></i>{}</td><td>{}</td><td>{}</td>\
                 <td class=\"n\">{}</td><td class=\"n\">{}</td>",
                colour(index),
                escape(&series.name),
                escape(mark.strip_prefix('c').unwrap_or(mark)),
                escape(settings),
                number(*per_user),
                number(*per_gpu)
            );
            for value in latencies {
                let _ = write!(out, "<td class=\"n\">{}</td>", value.map(number).unwrap_or_default());
            }
            let _ = writeln!(out, "<td>{}</td></tr>", if *frontier { "yes" } else { "" });
        }
    }
    out
}
