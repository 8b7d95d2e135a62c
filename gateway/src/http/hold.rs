//! Clients of a server whose API servers have died wait for the successors instead of being refused.
//!
//! Invariant: once an API server was ready, no request for the model is answered by one that still starts: it waits until that one is
//! ready too. So `/ready` speaks for all of them, and successors refuse nobody, not even when all have died. Whoever asks how the
//! server does (`/live`, `/health`, `/metrics`) is answered at once.

use super::App;
use axum::{
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use std::{
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

/// Longest time for which a server that starts holds its clients back, all together: the engine may have died as well.
const HOLD: Duration = Duration::from_secs(5);
/// How often it looks whether it may go on.
const LOOK: Duration = Duration::from_millis(5);

/// When a server began to hold clients back, if it did.
#[derive(Default)]
pub struct Hold(OnceLock<Instant>);

impl App {
    /// Waits while this server starts although the server as a whole was ready, but never past the hold's end.
    pub async fn until_started(&self) {
        while self.is_starting()
            && self.board.was_ready()
            && self.hold.0.get_or_init(Instant::now).elapsed() < HOLD
        {
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// Lets a request on when the server has started.
pub async fn hold(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    app.until_started().await;
    next.run(request).await
}
