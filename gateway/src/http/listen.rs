//! Accepting connections from the listener that all API servers share.
//!
//! Invariant: a ready server with the fewest connections never waits to accept, so a connection is never left alone.
//! Invariant: a server that still starts leaves new connections to others that may be ready ([`super::hold`] says for how long).

use super::App;
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use std::{
    io,
    net::TcpListener as StdListener,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    time::sleep,
};

/// How many more connections than the least loaded server one may have and still accept.
const SLACK: u64 = 4;
/// Longest pause in favour of a less loaded server. That one may be dead and its count stale, so nobody waits longer.
const YIELD: Duration = Duration::from_millis(20);
/// A client has this long to send a request's head; the wait for the next request on a kept connection counts too.
const HEAD_TIMEOUT: Duration = Duration::from_secs(300);

/// Ends the accept loop and its connections.
#[derive(Clone)]
pub struct Drain {
    close: Arc<watch::Sender<bool>>,
}

impl Drain {
    /// A service that goes on.
    pub fn new() -> Self {
        Self { close: Arc::new(watch::Sender::new(false)) }
    }

    /// Accept nothing more; close connections after the answer that is under way.
    pub fn close(&self) {
        self.close.send_replace(true);
    }
}

impl Default for Drain {
    fn default() -> Self {
        Self::new()
    }
}

struct Open {
    app: Arc<App>,
    own: Arc<AtomicUsize>,
    server: u16,
}

impl Open {
    fn new(app: &Arc<App>, own: &Arc<AtomicUsize>, server: u16) -> Self {
        let count = own.fetch_add(1, Ordering::Relaxed) + 1;
        app.board.set_connections(server, count as u64);
        Self { app: app.clone(), own: own.clone(), server }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let count = self.own.fetch_sub(1, Ordering::Relaxed) - 1;
        self.app.board.set_connections(self.server, count as u64);
    }
}

/// Serves connections as API server `server` of `servers` until `drain` closes, and returns when all have ended.
pub async fn serve_listener(
    listener: StdListener,
    router: Router,
    app: Arc<App>,
    (server, servers): (u16, u16),
    drain: Drain,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let own = Arc::new(AtomicUsize::new(0));
    let mut closing = drain.close.subscribe();
    if servers > 1 {
        // Others need not leave connections to a server that takes none yet.
        app.board.set_connections(server, u64::MAX);
        tokio::select! {
            () = app.until_started() => {}
            _ = closing.wait_for(|closed| *closed) => {}
        }
    }
    app.board.set_connections(server, 0);
    let mut last_error: Option<io::ErrorKind> = None;
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &app, &own, server, servers) => accepted,
            _ = closing.wait_for(|closed| *closed) => break,
        };
        match accepted {
            Ok(stream) => {
                last_error = None;
                let open = Open::new(&app, &own, server);
                tokio::spawn(connection(stream, router.clone(), open, drain.close.subscribe()));
            }
            Err(error) => {
                // Out of file descriptors, most likely: said once, tried again when some may be free.
                if last_error.replace(error.kind()) != Some(error.kind()) {
                    tracing::warn!(%error, "cannot accept connections at the moment");
                }
                sleep(YIELD).await;
            }
        }
    }
    drop(listener);
    while own.load(Ordering::Relaxed) > 0 {
        sleep(Duration::from_millis(5)).await;
    }
    app.board.set_connections(server, u64::MAX);
    Ok(())
}

async fn accept(
    listener: &TcpListener,
    app: &App,
    own: &AtomicUsize,
    server: u16,
    servers: u16,
) -> io::Result<TcpStream> {
    if servers > 1 {
        app.until_started().await;
        let count = own.load(Ordering::Relaxed) as u64;
        if count > app.board.fewest_connections(server, servers).saturating_add(SLACK) {
            sleep(YIELD).await;
        }
    }
    let (stream, _) = listener.accept().await?;
    // Tokens are small and must not wait for more of them. Where it fails the connection is gone already.
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

async fn connection(stream: TcpStream, router: Router, _counted: Open, mut closing: watch::Receiver<bool>) {
    let service = TowerToHyperService::new(router);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let mut told = false;
    let result = loop {
        tokio::select! {
            result = connection.as_mut() => break result,
            _ = closing.wait_for(|closed| *closed), if !told => {
                told = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended early");
    }
}
