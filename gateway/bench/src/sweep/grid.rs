//! The grid: which servers are started, and which points are measured on each.
//!
//! Invariant: one grid gives one set of file names; two points never share one.

use super::{SweepArgs, SweepError};
use crate::layout::Layout;
use crate::results::Settings;
use crate::serve::{DatasetName, ServeBenchArgs};
use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

/// One way to start a server, and what is measured on it.
#[derive(Clone, Debug)]
pub struct ServerRun {
    /// Flags of `gossamer serve` without dashes.
    pub flags: Vec<(String, String)>,
    /// Its ranks.
    pub gpus: u32,
    /// Name for its log.
    pub name: String,
    /// The points.
    pub points: Vec<Point>,
}

/// One measurement.
#[derive(Clone, Debug)]
pub struct Point {
    /// File name without extension.
    pub name: String,
    /// What it is known by.
    pub settings: Settings,
    /// What the client is told.
    pub args: ServeBenchArgs,
}

/// All combinations: layouts, then server flags, then lengths, then concurrency.
pub fn servers(args: &SweepArgs) -> Result<Vec<ServerRun>, SweepError> {
    let layouts = if args.layout.is_empty() { vec![Layout::SINGLE] } else { args.layout.clone() };
    let mut combinations: Vec<Vec<(String, String)>> = vec![Vec::new()];
    for axis in &args.server_flag {
        combinations = combinations
            .iter()
            .flat_map(|flags| {
                axis.values.iter().map(move |value| {
                    let mut flags = flags.clone();
                    flags.push((axis.name.clone(), value.clone()));
                    flags
                })
            })
            .collect();
    }
    let mut servers = Vec::new();
    let mut names: Vec<String> = Vec::new();
    for layout in &layouts {
        for flags in &combinations {
            let mut server: BTreeMap<String, String> = flags.iter().cloned().collect();
            let mut all_flags = flags.clone();
            if args.serve.base_url.is_none() {
                server.insert("layout".to_owned(), layout.to_string());
                let model = args.model_dir.as_ref().map(|path| path.display().to_string());
                server.insert("model".to_owned(), model.unwrap_or_else(|| "demo".to_owned()));
                for (name, value) in layout.flags() {
                    if flags.iter().any(|(given, _)| *given == name) {
                        return Err(SweepError::Arguments(format!(
                            "--{name} comes from --layout: leave it out of --server-flag"
                        )));
                    }
                    all_flags.push((name, value));
                }
            }
            let mut parts: Vec<String> =
                flags.iter().map(|(name, value)| format!("{name}={value}")).collect();
            if !args.layout.is_empty() {
                parts.push(layout.to_string());
            }
            let points = points(args, &server, &parts);
            for point in &points {
                if names.contains(&point.name) {
                    return Err(SweepError::Arguments(format!(
                        "the grid names the point '{}' twice",
                        point.name
                    )));
                }
                names.push(point.name.clone());
            }
            let gpus = if args.serve.base_url.is_some() { args.gpus } else { layout.gpus() };
            let name = if parts.is_empty() { "server".to_owned() } else { file_name(&parts) };
            servers.push(ServerRun { flags: all_flags, gpus, name, points });
        }
    }
    Ok(servers)
}

fn points(args: &SweepArgs, server: &BTreeMap<String, String>, parts: &[String]) -> Vec<Point> {
    let lengths: Vec<_> = match args.lengths.as_slice() {
        [] => vec![None],
        lengths => lengths.iter().copied().map(Some).collect(),
    };
    let mut points = Vec::new();
    for length in lengths {
        for concurrency in &args.concurrency {
            let mut serve = args.serve.clone();
            serve.max_concurrency = Some(*concurrency);
            if let Some(length) = length {
                (serve.random_input_len, serve.random_output_len) = (length.input, length.output);
            }
            if let Some(each) = args.prompts_per_stream {
                serve.num_prompts = each.saturating_mul(*concurrency);
            }
            let mut parts = parts.to_vec();
            parts.extend(length.map(|length| format!("in{}-out{}", length.input, length.output)));
            parts.push(format!("c{concurrency}"));
            let settings = Settings { client: client_settings(&serve), server: server.clone() };
            points.push(Point { name: file_name(&parts), settings, args: serve });
        }
    }
    points
}

/// What of the client's arguments decides a result.
fn client_settings(args: &ServeBenchArgs) -> BTreeMap<String, String> {
    let mut map = BTreeMap::new();
    let mut put = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            map.insert(name.to_owned(), value);
        }
    };
    put("concurrency", args.max_concurrency.map(|limit| limit.to_string()));
    put("num-prompts", Some(args.num_prompts.to_string()));
    put("request-rate", Some(args.request_rate.to_string()));
    put("burstiness", Some(args.burstiness.to_string()));
    put("seed", Some(args.seed.to_string()));
    put("ignore-eos", Some(args.ignore_eos.to_string()));
    put("endpoint", Some(args.path().to_owned()));
    put("temperature", args.temperature.map(|value| value.to_string()));
    put("dataset", Some(format!("{:?}", args.dataset_name).to_lowercase()));
    put("dataset-path", args.dataset_path.as_ref().map(|path| path.display().to_string()));
    put("output-len", args.sharegpt_output_len.map(|len| len.to_string()));
    put("base-url", args.base_url.clone());
    match args.dataset_name {
        DatasetName::Random => {
            put("lengths", Some(format!("{}:{}", args.random_input_len, args.random_output_len)));
            put("range-ratio", Some(args.random_range_ratio.to_string()));
            put("prefix-len", Some(args.random_prefix_len.to_string()));
        }
        DatasetName::PrefixRepetition => {
            let (prefix, suffix) = (args.prefix_repetition_prefix_len, args.prefix_repetition_suffix_len);
            let (count, output) = (args.prefix_repetition_num_prefixes, args.prefix_repetition_output_len);
            put("lengths", Some(format!("{count}x{prefix}+{suffix}:{output}")));
        }
        DatasetName::Sharegpt | DatasetName::Custom => {}
    }
    map
}

/// A file name of parts. What a file system may not like is replaced, and told apart by a hash.
fn file_name(parts: &[String]) -> String {
    let whole = parts.join("__");
    let plain = |c: char| c.is_ascii_alphanumeric() || "=-._,".contains(c);
    let name: String = whole.chars().map(|c| if plain(c) { c } else { '-' }).take(150).collect();
    if name == whole {
        return name;
    }
    let mut hasher = DefaultHasher::new();
    whole.hash(&mut hasher);
    format!("{name}-{:08x}", hasher.finish() as u32)
}
