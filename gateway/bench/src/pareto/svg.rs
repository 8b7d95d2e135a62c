//! The picture: axes, points, frontiers, legend.
//!
//! Colours are variables, so that the page and the picture each follow the reader's light or dark setting.

use super::scale::{Scale, number};
use super::{PlotPoint, Series};
use std::fmt::Write;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 600.0;
const LEFT: f64 = 84.0;
const RIGHT: f64 = 24.0;
const BOTTOM: f64 = 64.0;
/// Height of a row of the legend.
const ROW: f64 = 22.0;
/// Width of a letter of the legend and of the marks: a little more than fonts have.
const LETTER: f64 = 7.2;

/// Colours that stay apart on white and on black, and for most colour-blind readers with the shapes below.
const COLOURS: [&str; 8] =
    ["#2f7ed8", "#e8710a", "#1a9e77", "#b04fc4", "#d6404e", "#a98600", "#0fa3b8", "#8a6d5a"];

/// Colour variables, for light and dark.
pub const STYLE: &str = "\
:root{--ground:#fff;--ink:#1c2024;--soft:#5b6470;--line:#e3e6ea}\
@media(prefers-color-scheme:dark){:root{--ground:#14171a;--ink:#e8eaed;--soft:#9aa4b0;--line:#2b3036}}\
.pareto{background:var(--ground);font:13px system-ui,-apple-system,'Segoe UI',sans-serif}\
.pareto text{fill:var(--ink)}.pareto .tick,.pareto .mark{fill:var(--soft);font-size:12px}\
.pareto .grid{stroke:var(--line);stroke-width:1}.pareto .frame{fill:none;stroke:var(--soft);stroke-width:1}\
.pareto .frontier{fill:none;stroke-width:2}.pareto .beaten{fill:var(--ground);opacity:.75}";

/// Colour of a series.
pub fn colour(index: usize) -> &'static str {
    COLOURS[index % COLOURS.len()]
}

/// Text that may stand in HTML and SVG.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The picture as a file of its own.
pub fn standalone(all: &[Series]) -> String {
    let drawing = draw(all);
    let (head, body) = drawing.split_once('>').unwrap_or((&drawing, ""));
    format!("{head} xmlns=\"http://www.w3.org/2000/svg\"><style>{STYLE}</style>{body}")
}

/// The picture as an element of a page.
pub fn draw(all: &[Series]) -> String {
    let (legend, rows) = legend(all);
    let top = 16.0 + ROW * rows as f64;
    let points = || all.iter().flat_map(|series| &series.points);
    let x = Scale::new(points().map(|point| point.per_user), LEFT, WIDTH - RIGHT);
    let y = Scale::new(points().map(|point| point.per_gpu), HEIGHT - BOTTOM, top);
    let mut out = format!(
        "<svg class=\"pareto\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"Tokens per second and GPU against \
         tokens per second and user\"><rect width=\"{WIDTH}\" height=\"{HEIGHT}\" style=\"fill:var(--ground)\"/>{legend}"
    );
    axes(&mut out, &x, &y, top);
    let mut taken: Vec<Area> =
        points().map(|point| Area::around(x.at(point.per_user), y.at(point.per_gpu), 6.0, 6.0)).collect();
    let frame = Area { left: LEFT, right: WIDTH - RIGHT, top, bottom: HEIGHT - BOTTOM };
    for (index, series) in all.iter().enumerate() {
        let _ = write!(out, "<g class=\"series\" data-series=\"{index}\">");
        let frontier: Vec<&PlotPoint> = series.points.iter().filter(|point| point.frontier).collect();
        let path: Vec<String> = frontier
            .iter()
            .map(|point| format!("{:.1},{:.1}", x.at(point.per_user), y.at(point.per_gpu)))
            .collect();
        let _ = write!(
            out,
            "<polyline class=\"frontier\" stroke=\"{}\" points=\"{}\"/>",
            colour(index),
            path.join(" ")
        );
        // Points of the frontier last: they lie on top.
        for point in series.points.iter().filter(|point| !point.frontier).chain(frontier.iter().copied()) {
            let (at_x, at_y) = (x.at(point.per_user), y.at(point.per_gpu));
            let paint = if point.frontier {
                format!("fill=\"{}\"", colour(index))
            } else {
                format!("class=\"beaten\" stroke=\"{}\" stroke-width=\"1.5\"", colour(index))
            };
            let _ = write!(
                out,
                "<g class=\"point\" tabindex=\"0\" data-tip=\"{tip}\"><title>{tip}</title>{}</g>",
                shape(index, at_x, at_y, &paint),
                tip = escape(&tip(series, point))
            );
        }
        for point in frontier.iter().filter(|point| !point.mark.is_empty()) {
            let (at_x, at_y) = (x.at(point.per_user), y.at(point.per_gpu));
            // Above, right, below or left of its point, where nothing is; else the tip must do.
            let width = LETTER * point.mark.len() as f64;
            let places = [(0.0, -14.0), (width / 2.0 + 11.0, 0.0), (0.0, 16.0), (-width / 2.0 - 11.0, 0.0)];
            let free = places.into_iter().find_map(|(right, down)| {
                let area = Area::around(at_x + right, at_y + down, width / 2.0, 7.0);
                (area.inside(&frame) && !taken.iter().any(|other| area.meets(other)))
                    .then_some((area, right, down))
            });
            if let Some((area, right, down)) = free {
                let (text_x, text_y) = (at_x + right, at_y + down + 4.0);
                let mark = escape(&point.mark);
                let _ = write!(
                    out,
                    "<text class=\"mark\" x=\"{text_x:.1}\" y=\"{text_y:.1}\" text-anchor=\"middle\">{mark}</text>"
                );
                taken.push(area);
            }
        }
        out.push_str("</g>");
    }
    out.push_str("</svg>\n");
    out
}

fn axes(out: &mut String, x: &Scale, y: &Scale, top: f64) {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    for tick in x.ticks() {
        let at = x.at(tick);
        let _ = write!(
            out,
            "<line class=\"grid\" x1=\"{at:.1}\" y1=\"{top}\" x2=\"{at:.1}\" y2=\"{bottom}\"/>\
             <text class=\"tick\" x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            bottom + 18.0,
            number(tick)
        );
    }
    for tick in y.ticks() {
        let at = y.at(tick);
        let _ = write!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\"/>\
             <text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 8.0,
            at + 4.0,
            number(tick)
        );
    }
    let kind = |scale: &Scale| if scale.is_logarithmic() { " (logarithmic)" } else { "" };
    let (middle_x, middle_y) = (f64::midpoint(LEFT, right), f64::midpoint(top, bottom));
    let _ = write!(
        out,
        "<rect class=\"frame\" x=\"{LEFT}\" y=\"{top}\" width=\"{}\" height=\"{}\"/>\
         <text x=\"{middle_x}\" y=\"{}\" text-anchor=\"middle\">tokens/s per user, 1000 / mean TPOT in ms{}</text>\
         <text x=\"20\" y=\"{middle_y}\" text-anchor=\"middle\" transform=\"rotate(-90 20 {middle_y})\">tokens/s per GPU{}</text>",
        right - LEFT,
        bottom - top,
        HEIGHT - 16.0,
        kind(x),
        kind(y)
    );
}

/// The legend, and its rows.
fn legend(all: &[Series]) -> (String, usize) {
    let (mut out, mut at, mut row) = (String::new(), LEFT, 0usize);
    for (index, series) in all.iter().enumerate() {
        let mut name: String = series.name.chars().take(60).collect();
        if name.len() < series.name.len() {
            name.push('…');
        }
        let width = 40.0 + LETTER * name.chars().count() as f64;
        if at > LEFT && at + width > WIDTH - RIGHT {
            (at, row) = (LEFT, row + 1);
        }
        let y = 16.0 + ROW * row as f64;
        let fill = format!("fill=\"{}\"", colour(index));
        let _ = write!(
            out,
            "<g class=\"key\" data-series=\"{index}\">{}<text x=\"{:.1}\" y=\"{:.1}\">{}</text></g>",
            shape(index, at + 6.0, y, &fill),
            at + 18.0,
            y + 4.5,
            escape(&name)
        );
        at += width;
    }
    (out, row + 1)
}

fn shape(index: usize, x: f64, y: f64, paint: &str) -> String {
    match index % 4 {
        0 => format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\" {paint}/>"),
        1 => format!("<rect x=\"{:.1}\" y=\"{:.1}\" width=\"9\" height=\"9\" {paint}/>", x - 4.5, y - 4.5),
        2 => format!("<path d=\"M{x:.1} {:.1}l6 10.4h-12z\" {paint}/>", y - 6.4),
        _ => format!("<path d=\"M{x:.1} {:.1}l6.2 6.2l-6.2 6.2l-6.2 -6.2z\" {paint}/>", y - 6.2),
    }
}

/// What is said of a point, one thing a line.
fn tip(series: &Series, point: &PlotPoint) -> String {
    let mut lines = vec![series.name.clone()];
    if let Some(concurrency) = point.mark.strip_prefix('c') {
        lines.push(format!("{concurrency} streams"));
    }
    if !point.settings.is_empty() {
        lines.push(point.settings.clone());
    }
    lines.push(format!("{} tokens/s per user", number(point.per_user)));
    lines.push(format!("{} tokens/s per GPU", number(point.per_gpu)));
    for (name, value) in ["TTFT", "TPOT", "TTFT p99"].into_iter().zip(point.latencies) {
        lines.extend(value.map(|value| format!("{name} {} ms", number(value))));
    }
    lines.join("\n")
}

#[derive(Clone, Copy)]
struct Area {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl Area {
    fn around(x: f64, y: f64, half_width: f64, half_height: f64) -> Self {
        Self { left: x - half_width, right: x + half_width, top: y - half_height, bottom: y + half_height }
    }

    fn meets(&self, other: &Self) -> bool {
        self.left < other.right
            && other.left < self.right
            && self.top < other.bottom
            && other.top < self.bottom
    }

    fn inside(&self, other: &Self) -> bool {
        self.left >= other.left
            && self.right <= other.right
            && self.top >= other.top
            && self.bottom <= other.bottom
    }
}
