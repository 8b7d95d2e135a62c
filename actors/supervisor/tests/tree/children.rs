//! Children with the real ones' duties and a toy's work: a line of text goes from a client through an API server, the
//! scheduler and a worker and back, and each adds its process number.
//!
//! Each keeps what it has not been answered yet and asks a successor again, as the real ones do.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use gossamer_channel::{Receiver, RecvError, Sender};
use gossamer_supervisor::{
    ChildContext, ChildEvent, ChildRole, ChildState, DuplexLink, Work, WorkerLink, WorkersLink, run_tree,
};
use tokio::sync::mpsc::error::TryRecvError;

const TURN: Duration = Duration::from_millis(2);
const LONG: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct Broken(String);

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Broken {}

/// A line under way: API server, number there, text.
type Line = (u16, u64, String);

fn pack((server, number, text): &Line) -> Vec<u8> {
    format!("{server} {number} {text}").into_bytes()
}

fn unpack(bytes: &[u8]) -> Line {
    let text = std::str::from_utf8(bytes).unwrap();
    let mut parts = text.splitn(3, ' ');
    let (server, number) = (parts.next().unwrap().parse().unwrap(), parts.next().unwrap().parse().unwrap());
    (server, number, parts.next().unwrap().to_owned())
}

pub fn run(context: ChildContext) -> Result<(), Broken> {
    match context.role {
        ChildRole::ApiServer(index) => api_server(context, index),
        ChildRole::Scheduler => scheduler(context),
        ChildRole::Worker(rank) => worker(context, rank),
    }
}

/// All events that are there; `None` when the supervisor has gone.
fn events(context: &mut ChildContext) -> Option<Vec<ChildEvent>> {
    let mut all = Vec::new();
    loop {
        match context.events.try_recv() {
            Ok(event) => all.push(event),
            Err(TryRecvError::Empty) => return Some(all),
            Err(TryRecvError::Disconnected) => return None,
        }
    }
}

/// A message, or nothing for a turn; a ring that ended takes itself away.
fn next(receiver: &mut Option<Receiver>) -> Option<Vec<u8>> {
    match receiver {
        Some(ring) => match ring.recv(TURN) {
            Ok(bytes) => Some(bytes),
            Err(RecvError::Timeout) => None,
            Err(_) => {
                *receiver = None;
                None
            }
        },
        None => {
            std::thread::park_timeout(TURN);
            None
        }
    }
}

#[derive(Default)]
struct Service {
    waiting: HashMap<u64, (String, mpsc::Sender<String>)>,
    to_scheduler: Option<Sender>,
    failed: Option<String>,
    next: u64,
}

fn api_server(mut context: ChildContext, index: u16) -> Result<(), Broken> {
    let service = Arc::new(Mutex::new(Service::default()));
    let listener = context.listener.take().ok_or(Broken("no listener".into()))?;
    let board = context.board.clone().ok_or(Broken("no board".into()))?;
    let accepting = Arc::clone(&service);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            board.words()[0].fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let service = Arc::clone(&accepting);
            std::thread::spawn(move || answer(&stream, &service, index));
        }
    });
    let mut from_scheduler: Option<Receiver> = None;
    let mut draining = false;
    context.status.set_state(ChildState::Ready);
    loop {
        context.status.beat();
        let Some(events) = events(&mut context) else { return Ok(()) };
        for event in events {
            let mut service = service.lock().unwrap();
            match event {
                ChildEvent::Scheduler { link: DuplexLink { mut sender, receiver }, .. } => {
                    for (&number, (text, _)) in &service.waiting {
                        // Fails if that one died, too; the next is asked again.
                        let _ = sender.send(&pack(&(index, number, text.clone())), LONG);
                    }
                    service.to_scheduler = Some(sender);
                    from_scheduler = Some(receiver);
                }
                ChildEvent::Lost { .. } => service.to_scheduler = None,
                ChildEvent::Failed { reason } => {
                    for (_, (_, client)) in service.waiting.drain() {
                        let _ = client.send(format!("error {reason}"));
                    }
                    service.failed = Some(reason);
                }
                ChildEvent::Drain { .. } => {
                    context.status.set_state(ChildState::Draining);
                    draining = true;
                }
                ChildEvent::Stop => return Ok(()),
                other => return Err(Broken(format!("unexpected {other:?}"))),
            }
        }
        if let Some(bytes) = next(&mut from_scheduler) {
            let (_, number, text) = unpack(&bytes);
            // A late answer for a line that was answered by a predecessor is dropped.
            if let Some((_, client)) = service.lock().unwrap().waiting.remove(&number) {
                let _ = client.send(text);
            }
        }
        if draining && Arc::strong_count(&service) <= 2 {
            return Ok(());
        }
    }
}

fn answer(stream: &TcpStream, service: &Arc<Mutex<Service>>, index: u16) {
    let mut text = String::new();
    if BufReader::new(stream).read_line(&mut text).unwrap_or(0) == 0 {
        return;
    }
    let text = format!("{} api={}", text.trim_end(), std::process::id());
    let (client, inbox) = mpsc::channel();
    let mut guard = service.lock().unwrap();
    if let Some(reason) = &guard.failed {
        let _ = client.send(format!("error {reason}"));
    } else {
        guard.next += 1;
        let number = guard.next;
        if let Some(sender) = &mut guard.to_scheduler {
            let _ = sender.send(&pack(&(index, number, text.clone())), LONG);
        }
        guard.waiting.insert(number, (text, client));
    }
    drop(guard);
    if let Ok(reply) = inbox.recv() {
        let _ = (&*stream).write_all(format!("{reply}\n").as_bytes());
    }
}

fn scheduler(mut context: ChildContext) -> Result<(), Broken> {
    let mut servers: HashMap<u16, DuplexLink> = HashMap::new();
    let mut workers: Option<WorkersLink> = None;
    let mut open: Vec<Line> = Vec::new();
    context.status.set_state(ChildState::Ready);
    loop {
        context.status.beat();
        let Some(events) = events(&mut context) else { return Ok(()) };
        for event in events {
            match event {
                ChildEvent::ApiServer { index, link, .. } => {
                    // Its earlier incarnation's lines have nobody who waits for them.
                    open.retain(|(server, ..)| *server != index);
                    servers.insert(index, link);
                }
                ChildEvent::Workers { mut link, .. } => {
                    for line in &open {
                        let _ = link.plans.send(&pack(line), LONG);
                    }
                    workers = Some(link);
                }
                ChildEvent::Lost { peer: ChildRole::ApiServer(index) } => drop(servers.remove(&index)),
                ChildEvent::Lost { .. } => workers = None,
                ChildEvent::Stop => return Ok(()),
                other => return Err(Broken(format!("unexpected {other:?}"))),
            }
        }
        for link in servers.values_mut() {
            while let Ok(bytes) = link.receiver.try_recv() {
                let (server, number, text) = unpack(&bytes);
                let line = (server, number, format!("{text} scheduler={}", std::process::id()));
                if let Some(workers) = &mut workers {
                    let _ = workers.plans.send(&pack(&line), LONG);
                }
                open.push(line);
            }
        }
        for results in workers.iter_mut().flat_map(|workers| &mut workers.results) {
            while let Ok(bytes) = results.try_recv() {
                let line = unpack(&bytes);
                open.retain(|(server, number, _)| (*server, *number) != (line.0, line.1));
                if let Some(link) = servers.get_mut(&line.0) {
                    let _ = link.sender.send(&pack(&line), LONG);
                }
            }
        }
        std::thread::park_timeout(TURN);
    }
}

fn worker(mut context: ChildContext, rank: u32) -> Result<(), Broken> {
    match std::env::var("GOSSAMER_TEST_WORKER").as_deref() {
        Ok("bad-weights") => return Err(Broken("the weights are bad".into())),
        Ok("abort") => std::process::abort(),
        Ok("panic") => {
            let work = Work {
                name: "steps",
                deliver: Box::new(|_| {}),
                run: Box::new(|| panic!("no block for slot 7")),
            };
            return run_tree(context.events, work).map_err(|error| Broken(error.to_string()));
        }
        _ => {}
    }
    let mut plans: Option<Receiver> = None;
    let mut results: Option<Sender> = None;
    // Lines whose answer waits for a file that the test makes.
    let mut held: Vec<Line> = Vec::new();
    context.status.set_state(ChildState::Ready);
    loop {
        context.status.beat();
        let Some(events) = events(&mut context) else { return Ok(()) };
        for event in events {
            match event {
                ChildEvent::Plans { link: WorkerLink { plans: new_plans, results: new_results }, .. } => {
                    (plans, results) = (Some(new_plans), Some(new_results));
                    held.clear();
                }
                ChildEvent::Lost { .. } => (plans, results) = (None, None),
                ChildEvent::Stop => return Ok(()),
                other => return Err(Broken(format!("unexpected {other:?}"))),
            }
        }
        if let Some(bytes) = next(&mut plans) {
            held.push(unpack(&bytes));
        }
        held.retain(|(server, number, text)| {
            let file = text.split(' ').find_map(|word| word.strip_prefix("hold="));
            if file.is_some_and(|file| !Path::new(file).exists()) {
                return true;
            }
            if let Some(results) = &mut results {
                let text = format!("{text} worker-{rank}={}", std::process::id());
                let _ = results.send(&pack(&(*server, *number, text)), LONG);
            }
            false
        });
    }
}
