//! Merging of the sources: every setting is brought into the form of a flag, then one parse decides.

use crate::{ConfigError, Device, Recipe, ServeArgs, ServeConfig};
use clap::{Args, Command, FromArgMatches, parser::ValueSource};
use std::{collections::BTreeMap, ffi::OsString, path::Path};

/// Prefix of the environment variables that set flags.
pub const ENV_PREFIX: &str = "GOSSAMER_";

/// What follows the prefix in variables that are no settings of a server: those of the build of kernels, which stay exported
/// where somebody built and then serves, and the choice of CPU kernels, which their plugin reads itself.
const NO_SETTINGS: [&str; 4] = ["KERNELS_DIR", "CUDA_CACHE", "NVCC_FLAGS", "CPU_ISA"];

/// Outcome of [`resolve`].
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The configuration.
    pub config: ServeConfig,
    /// The recipe that was applied, and those of its settings that no stronger source replaced.
    pub recipe: Option<(String, Vec<(String, String)>)>,
}

/// Settings of one source: flag name without dashes to value and to where it was found.
type Layer = BTreeMap<String, (String, String)>;

/// Rewrites vLLM's spellings into the parser's: `-tp 2` and `--max_model_len` become `--tensor-parallel-size 2` and
/// `--max-model-len`.
pub fn expand_short_flags(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    args.into_iter()
        .map(|arg| {
            let Some(text) = arg.to_str() else { return arg };
            let (name, value) = match text.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (text, None),
            };
            let name = match name {
                "-tp" => "--tensor-parallel-size".to_owned(),
                "-pp" => "--pipeline-parallel-size".to_owned(),
                "-dp" => "--data-parallel-size".to_owned(),
                long if long.starts_with("--") => long.replace('_', "-"),
                _ => return arg,
            };
            match value {
                Some(value) => format!("{name}={value}").into(),
                None => name.into(),
            }
        })
        .collect()
}

/// Makes `--flag -1` name a value that is out of range, in place of an unknown flag `-1`: for every flag with a value, of
/// the command and of those below it.
pub fn read_negative_numbers(command: Command) -> Command {
    command
        .mut_args(|arg| match arg.is_positional() || is_switch(&arg) {
            true => arg,
            false => arg.allow_negative_numbers(true),
        })
        .mut_subcommands(read_negative_numbers)
}

/// Merges the command line (what follows `serve`), environment, file and recipe, and validates the result. `--device auto` is the
/// CPU: see [`resolve_on`].
pub fn resolve(
    args: impl IntoIterator<Item = OsString>,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
    demo_model: &Path,
) -> Result<Resolved, ConfigError> {
    resolve_on(args, environment, demo_model, |_| Device::Cpu)
}

/// As [`resolve`]; `best` is asked what `--device auto` is on this machine, under the merged settings.
pub fn resolve_on(
    args: impl IntoIterator<Item = OsString>,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
    demo_model: &Path,
    best: impl FnOnce(&ServeArgs) -> Device,
) -> Result<Resolved, ConfigError> {
    let command = ServeArgs::augment_args(Command::new("gossamer serve").no_binary_name(true));
    let command = read_negative_numbers(command);
    let args = expand_short_flags(args);
    let matches = command.clone().try_get_matches_from(&args).map_err(ConfigError::Usage)?;
    let flags = ServeArgs::from_arg_matches(&matches).map_err(ConfigError::Usage)?;
    let given = |name: &str| {
        command.get_arguments().any(|arg| {
            pair_name(&command, arg.get_long().unwrap_or(arg.get_id().as_str())) == name
                && matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine)
        })
    };

    let env = env_layer(&command, environment)?;
    let setting = |layers: &[&Layer], name: &str| {
        layers.iter().find_map(|layer| layer.get(name)).map(|(value, _)| value.clone())
    };
    let path = flags.config.clone().or_else(|| setting(&[&env], "config").map(Into::into));
    let file = match &path {
        Some(path) => file_layer(&command, path)?,
        None => Layer::new(),
    };
    let recipe_name = flags.recipe.clone().or_else(|| setting(&[&env, &file], "recipe"));
    let recipe = match &recipe_name {
        Some(name) => recipe_layer(name)?,
        None => Layer::new(),
    };

    // Weakest first, so that the order on the assembled command line says what wins; names of stronger sources are
    // left out of weaker ones, because lists given twice would be joined.
    let mut merged: Vec<OsString> = Vec::new();
    let mut kept_of_recipe = Vec::new();
    for (rank, layer) in [&recipe, &file, &env].into_iter().enumerate() {
        for (name, (value, origin)) in layer {
            let stronger = [&file, &env].into_iter().skip(rank).any(|layer| layer.contains_key(name));
            if given(name) || stronger {
                continue;
            }
            let tokens = flag_tokens(&command, name, value, origin)?;
            // Parsed alone first: a wrong value is reported with its source.
            command
                .clone()
                .try_get_matches_from(&tokens)
                .map_err(|error| ConfigError::Value { origin: origin.clone(), message: brief(&error) })?;
            merged.extend(tokens);
            if rank == 0 {
                kept_of_recipe.push((name.clone(), value.clone()));
            }
        }
    }
    merged.extend(args);
    let matches = command.try_get_matches_from(merged).map_err(ConfigError::Usage)?;
    let merged = ServeArgs::from_arg_matches(&matches).map_err(ConfigError::Usage)?;
    Ok(Resolved {
        config: ServeConfig::from_args(merged, demo_model, best)?,
        recipe: recipe_name.map(|name| (name, kept_of_recipe)),
    })
}

/// `no-x` and `x` are one setting where both are flags.
fn pair_name<'a>(command: &Command, long: &'a str) -> &'a str {
    match long.strip_prefix("no-") {
        Some(positive) if find(command, positive).is_some() => positive,
        _ => long,
    }
}

fn find<'a>(command: &'a Command, name: &str) -> Option<&'a clap::Arg> {
    command.get_arguments().find(|arg| arg.get_long().unwrap_or(arg.get_id().as_str()) == name)
}

fn is_switch(arg: &clap::Arg) -> bool {
    !arg.get_action().takes_values()
}

fn flag_tokens(
    command: &Command,
    name: &str,
    value: &str,
    origin: &str,
) -> Result<Vec<OsString>, ConfigError> {
    let arg = find(command, name);
    if arg.is_some_and(is_switch) {
        return match value.to_ascii_lowercase().as_str() {
            "1" | "true" | "on" | "yes" => Ok(vec![format!("--{name}").into()]),
            "0" | "false" | "off" | "no" => Ok(vec![format!("--no-{name}").into()]),
            _ => Err(ConfigError::Value {
                origin: origin.into(),
                message: format!("expected true or false, got '{value}'"),
            }),
        };
    }
    match arg.and_then(clap::Arg::get_long) {
        Some(long) => Ok(vec![format!("--{long}={value}").into()]),
        // The model directory has no dashes.
        None => Ok(vec![value.into()]),
    }
}

fn check_known(command: &Command, name: &str, origin: &str) -> Result<(), ConfigError> {
    if find(command, name).is_some_and(|arg| pair_name(command, name) == name && arg.get_id() != "help") {
        return Ok(());
    }
    let near = command
        .get_arguments()
        .filter_map(clap::Arg::get_long)
        .filter(|long| pair_name(command, long) == *long)
        .map(|long| (edit_distance(long, name), long))
        .min()
        .filter(|(distance, _)| *distance <= 3);
    Err(ConfigError::UnknownKey {
        origin: origin.into(),
        name: name.into(),
        hint: near.map_or_else(String::new, |(_, long)| format!(", did you mean '{long}'?")),
    })
}

fn env_layer(
    command: &Command,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Layer, ConfigError> {
    let mut layer = Layer::new();
    for (variable, value) in environment {
        let Some(name) = variable.to_str().and_then(|variable| variable.strip_prefix(ENV_PREFIX)) else {
            continue;
        };
        if NO_SETTINGS.contains(&name) {
            continue;
        }
        let origin = format!("environment variable {ENV_PREFIX}{name}");
        let name = name.to_ascii_lowercase().replace('_', "-");
        check_known(command, &name, &origin)?;
        let value = value.into_string().map_err(|_| ConfigError::Value {
            origin: origin.clone(),
            message: "expected UTF-8 text".into(),
        })?;
        layer.insert(name, (value, origin));
    }
    Ok(layer)
}

fn file_layer(command: &Command, path: &Path) -> Result<Layer, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
        what: "the configuration file",
        path: path.to_owned(),
        source,
    })?;
    let table: toml::Table = toml::from_str(&text)
        .map_err(|error| ConfigError::Toml { path: path.to_owned(), message: error.to_string() })?;
    let mut layer = Layer::new();
    for (key, value) in table {
        let name = key.replace('_', "-");
        let origin = format!("{}: {key}", path.display());
        check_known(command, &name, &origin)?;
        if name == "config" {
            return Err(ConfigError::Value { origin, message: "a file cannot name another one".into() });
        }
        let value = scalar(&value).ok_or_else(|| ConfigError::Value {
            origin: origin.clone(),
            message: format!(
                "expected a string, number, boolean or a list of them, got a {}",
                value.type_str()
            ),
        })?;
        if layer.insert(name, (value, origin.clone())).is_some() {
            return Err(ConfigError::Value { origin, message: "is set twice".into() });
        }
    }
    Ok(layer)
}

fn recipe_layer(name: &str) -> Result<Layer, ConfigError> {
    let recipe = Recipe::find(name).ok_or_else(|| {
        let names: Vec<_> = crate::RECIPES.iter().map(|recipe| recipe.name).collect();
        ConfigError::Invalid(format!("--recipe: there is no '{name}'; there are {}", names.join(", ")))
    })?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Ok(recipe
        .settings_for(cores)
        .into_iter()
        .map(|(key, value)| (key, (value, format!("recipe {name}"))))
        .collect())
}

fn scalar(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Float(number) => Some(number.to_string()),
        toml::Value::Boolean(flag) => Some(flag.to_string()),
        toml::Value::Array(items) => Some(items.iter().map(scalar).collect::<Option<Vec<_>>>()?.join(",")),
        _ => None,
    }
}

/// The first line of a parser error without its `error: ` prefix; usage text would only distract here.
fn brief(error: &clap::Error) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

/// Levenshtein distance, for hints.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests;
