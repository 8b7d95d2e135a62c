//! Logs: one line per event on stderr, with the process that wrote it.
//!
//! Invariant: no state of stderr ends or stops a process; what it does not take is lost.

mod sink;

use sink::Sink;
use std::{
    fmt,
    io::{IsTerminal, Write},
    time::{SystemTime, UNIX_EPOCH},
};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::{
    EnvFilter,
    fmt::{FmtContext, FormatEvent, FormatFields, format::Writer},
    registry::LookupSpan,
};

struct Line {
    process: Option<String>,
}

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (seconds, millis) = (now.as_secs() % 86_400, now.subsec_millis());
        let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        let level = match *event.metadata().level() {
            Level::ERROR => "ERROR",
            Level::WARN => "WARN ",
            Level::INFO => "INFO ",
            Level::DEBUG => "DEBUG",
            Level::TRACE => "TRACE",
        };
        write!(writer, "{hours:02}:{minutes:02}:{seconds:02}.{millis:03} {level} ")?;
        if let Some(process) = &self.process {
            write!(writer, "[{process}] ")?;
        }
        context.format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

/// Says a line on stderr without the form of a log: to whoever typed the command.
pub fn say(line: impl fmt::Display) {
    // Nobody listens: then the exit status alone tells.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Starts logging. Directives that cannot be read are said and replaced by `info`.
pub fn start(directives: &str, process: Option<String>) {
    let (filter, error) = match EnvFilter::try_new(directives) {
        Ok(filter) => (filter, None),
        Err(error) => (EnvFilter::new("info"), Some(error)),
    };
    let started = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(Sink::stderr())
        // They would be printed to stderr, with a panic where that fails.
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal())
        .event_format(Line { process })
        .try_init();
    // Only a program that embeds this one has a logger already; then it is the right one.
    if let (Ok(()), Some(error)) = (started, error) {
        tracing::warn!(%error, "--log {directives}: cannot be read, 'info' is used");
    }
}
