//! What must hold of a tree, whatever dies.

use std::net::TcpListener;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::harness::{LONG, Shape, eventually, is_alive, pid, read, segments, send_signal, socket_folders};

type Case = (&'static str, fn());

macro_rules! cases {
    ($($name:ident),* $(,)?) => { [$((stringify!($name), $name as fn())),*] };
}

/// Runs the cases whose name holds `filter`.
pub fn run(filter: Option<&str>) -> ExitCode {
    let all: [Case; 13] = cases![
        a_line_crosses_the_tree_and_nothing_is_named_in_dev_shm,
        all_api_servers_serve_from_one_socket,
        a_killed_worker_is_replaced_and_its_line_is_answered,
        a_killed_scheduler_is_replaced_and_refilled,
        a_killed_api_server_loses_its_own_connections_alone,
        without_restarts_a_killed_worker_ends_streams_health_and_server,
        a_stopped_worker_is_killed_after_the_stall_timeout_and_replaced,
        a_drain_answers_what_runs_even_if_the_whole_group_is_signalled,
        a_drain_ends_at_its_timeout,
        a_second_interrupt_ends_the_server_at_once,
        no_child_outlives_a_killed_supervisor,
        a_port_in_use_is_named_at_once,
        a_start_that_cannot_succeed_ends_with_the_reason,
    ];
    let mut failed = 0;
    for (name, case) in all.into_iter().filter(|(name, _)| filter.is_none_or(|filter| name.contains(filter)))
    {
        let start = Instant::now();
        let passed = std::panic::catch_unwind(case).is_ok();
        failed += u32::from(!passed);
        println!("test {name} ... {} ({:?})", if passed { "ok" } else { "FAILED" }, start.elapsed());
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn a_line_crosses_the_tree_and_nothing_is_named_in_dev_shm() {
    let mut tree = Shape::default().ready();
    let answer = tree.ask("hello");
    assert!(answer.starts_with("hello api="), "{answer}");
    let mut pids = ["api", "scheduler", "worker-0"].map(|name| pid(&answer, name)).to_vec();
    let mut children = tree.children();
    pids.sort_unstable();
    children.sort_unstable();
    assert_eq!(children, pids);
    pids.push(tree.supervisor.id());
    assert_eq!(segments(&pids), Vec::<String>::new());
    tree.signal(libc::SIGTERM);
    let (status, errors) = tree.end();
    assert!(status.success(), "{status}: {errors}");
    assert!(!pids.iter().any(|&pid| is_alive(pid)));
    assert_eq!(socket_folders(&pids), Vec::<String>::new());
}

fn all_api_servers_serve_from_one_socket() {
    let tree = Shape { api_servers: 3, ..Shape::default() }.ready();
    let mut seen = std::collections::HashSet::new();
    // The kernel wakes one of those that wait to accept; which one is not ours to say.
    eventually("all three API servers", || {
        seen.insert(pid(&tree.ask("who"), "api"));
        (seen.len() == 3).then_some(())
    });
}

fn a_killed_worker_is_replaced_and_its_line_is_answered() {
    let tree = Shape::default().ready();
    let (hold, file) = tree.hold();
    let first = pid(&tree.ask("first"), "worker-0");
    let pending = tree.send(&hold);
    for _ in 0..3 {
        let worker = pid(&tree.ask("who"), "worker-0");
        send_signal(worker, libc::SIGKILL);
    }
    std::fs::write(file, "").unwrap();
    let answer = read(pending);
    assert!(pid(&answer, "worker-0") != first, "{answer}");
    let (before, now) = (tree.ask("a"), tree.ask("b"));
    assert_eq!(pid(&before, "scheduler"), pid(&now, "scheduler"));
}

fn a_killed_scheduler_is_replaced_and_refilled() {
    let tree = Shape { api_servers: 2, ..Shape::default() }.ready();
    let (hold, file) = tree.hold();
    let pending: Vec<_> = (0..8).map(|_| tree.send(&hold)).collect();
    let first = tree.ask("first");
    send_signal(pid(&first, "scheduler"), libc::SIGKILL);
    let next = tree.ask("next");
    assert_ne!(pid(&next, "scheduler"), pid(&first, "scheduler"));
    std::fs::write(file, "").unwrap();
    for stream in pending {
        let answer = read(stream);
        assert_eq!(pid(&answer, "scheduler"), pid(&next, "scheduler"), "{answer}");
    }
}

fn a_killed_api_server_loses_its_own_connections_alone() {
    let tree = Shape { api_servers: 2, ..Shape::default() }.ready();
    let (hold, file) = tree.hold();
    let victim = pid(&tree.ask("who"), "api");
    let pending: Vec<_> = (0..12).map(|_| tree.send(&hold)).collect();
    // Everything sent is accepted once later lines were answered by both.
    let mut seen = std::collections::HashSet::new();
    eventually("both API servers", || {
        seen.insert(pid(&tree.ask("who"), "api"));
        (seen.len() == 2).then_some(())
    });
    send_signal(victim, libc::SIGKILL);
    eventually("the victim's successor", || {
        // The victim may have accepted this very connection before it died.
        let answer = tree.ask("who");
        (!answer.is_empty() && !seen.contains(&pid(&answer, "api"))).then_some(())
    });
    std::fs::write(file, "").unwrap();
    for stream in pending {
        let answer = read(stream);
        assert!(answer.is_empty() || pid(&answer, "api") != victim, "{answer}");
    }
}

fn without_restarts_a_killed_worker_ends_streams_health_and_server() {
    let mut tree = Shape { max_restarts: 0, ..Shape::default() }.ready();
    let (hold, _) = tree.hold();
    let pending: Vec<_> = (0..8).map(|_| tree.send(&hold)).collect();
    let start = Instant::now();
    send_signal(pid(&tree.ask("who"), "worker-0"), libc::SIGKILL);
    for stream in pending {
        let answer = read(stream);
        assert!(answer.starts_with("error worker-0 was killed by signal 9"), "{answer:?}");
    }
    let health = tree.ask("health");
    assert!(health.contains("--max-restarts is 0"), "{health:?}");
    let (status, errors) = tree.end();
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    assert_eq!(status.code(), Some(1));
    assert!(errors.contains("worker-0 was killed by signal 9"), "{errors}");
}

fn a_stopped_worker_is_killed_after_the_stall_timeout_and_replaced() {
    let tree = Shape { stall: Duration::from_millis(600), ..Shape::default() }.ready();
    let worker = pid(&tree.ask("who"), "worker-0");
    send_signal(worker, libc::SIGSTOP);
    let answer = tree.ask("anybody?");
    assert_ne!(pid(&answer, "worker-0"), worker, "{answer}");
    assert!(!is_alive(worker));
}

fn a_drain_answers_what_runs_even_if_the_whole_group_is_signalled() {
    let mut tree = Shape::default().ready();
    let (hold, file) = tree.hold();
    let pending = tree.send(&hold);
    let who = tree.ask("who");
    for child in tree.children() {
        send_signal(child, libc::SIGTERM);
        send_signal(child, libc::SIGINT);
    }
    tree.signal(libc::SIGTERM);
    assert_eq!(pid(&tree.ask("still?"), "worker-0"), pid(&who, "worker-0"));
    assert!(tree.supervisor.try_wait().unwrap().is_none());
    std::fs::write(file, "").unwrap();
    assert_eq!(pid(&read(pending), "worker-0"), pid(&who, "worker-0"));
    let (status, errors) = tree.end();
    assert!(status.success(), "{status}: {errors}");
}

fn a_drain_ends_at_its_timeout() {
    let mut tree = Shape { grace: Duration::from_millis(200), ..Shape::default() }.ready();
    let (hold, _) = tree.hold();
    let pending = tree.send(&hold);
    tree.ask("all is accepted");
    let start = Instant::now();
    tree.signal(libc::SIGTERM);
    let (status, errors) = tree.end();
    assert!(status.success(), "{status}: {errors}");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert_eq!(read(pending), "");
}

fn a_second_interrupt_ends_the_server_at_once() {
    let mut tree = Shape::default().ready();
    let (hold, _) = tree.hold();
    let _pending = tree.send(&hold);
    let children = tree.children();
    tree.ask("all is accepted");
    let start = Instant::now();
    tree.signal(libc::SIGINT);
    // Two signals at once may be delivered as one, so until it ends it is told again.
    let status = eventually("the supervisor's end", || {
        let ended = tree.supervisor.try_wait().unwrap();
        if ended.is_none() {
            tree.signal(libc::SIGINT);
        }
        ended
    });
    assert_eq!(status.code(), Some(1));
    assert!(start.elapsed() < LONG / 4, "{:?}", start.elapsed());
    eventually("the children's end", || (!children.iter().any(|&pid| is_alive(pid))).then_some(()));
}

fn no_child_outlives_a_killed_supervisor() {
    for ready in [false, true, false, true, false] {
        let shape = Shape { api_servers: 2, ..Shape::default() };
        let mut tree = if ready { shape.ready() } else { shape.listening() };
        let mut pids = if ready {
            tree.children()
        } else {
            // In the middle of the start: some exist.
            eventually("a child", || Some(tree.children()).filter(|children| !children.is_empty()))
        };
        pids.push(tree.supervisor.id());
        tree.supervisor.kill().unwrap();
        tree.supervisor.wait().unwrap();
        eventually("the children's end", || (!pids.iter().any(|&pid| is_alive(pid))).then_some(()));
        assert_eq!(segments(&pids), Vec::<String>::new());
        // Sockets of children that had not connected yet may be left; the next server takes them away.
        let next = shape.ready();
        assert_eq!(socket_folders(&pids), Vec::<String>::new());
        drop(next);
    }
}

fn a_port_in_use_is_named_at_once() {
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = holder.local_addr().unwrap().port();
    let folder = tempfile::tempdir().unwrap();
    let start = Instant::now();
    let output = Shape { port, ..Shape::default() }.command(folder.path()).output().unwrap();
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains(&format!("port {port} is in use")), "{errors}");
}

fn a_start_that_cannot_succeed_ends_with_the_reason() {
    for (worker, restarts, reason) in [
        ("bad-weights", 10, "the start failed: worker-0: the weights are bad"),
        ("abort", 1, "the start failed: worker-0: worker-0 was killed by signal 6"),
        ("panic", 10, "the start failed: worker-0: the thread `steps` panicked: no block for slot 7"),
    ] {
        let mut tree = Shape { worker, max_restarts: restarts, ..Shape::default() }.listening();
        let children = tree.children();
        let (status, errors) = tree.end();
        assert_eq!(status.code(), Some(1));
        assert!(errors.contains(reason), "{errors}");
        eventually("the children's end", || (!children.iter().any(|&pid| is_alive(pid))).then_some(()));
    }
}
