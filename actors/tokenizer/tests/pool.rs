//! The tokenizer pool: results, fairness, limits, cancellation, and defects inside jobs.

// The lint knows test functions, not their helpers.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, mpsc};

use gossamer_tokenizer::{PoolError, PoolOptions, RenderError, Segment, Tokenizer, TokenizerPool};

static O200K: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| Arc::new(Tokenizer::o200k_harmony().unwrap()));

async fn pool(threads: usize, max_jobs: usize) -> TokenizerPool {
    TokenizerPool::start(O200K.clone(), PoolOptions { threads, max_jobs }, None).await.unwrap()
}

#[tokio::test]
async fn jobs_give_what_the_tokenizer_gives() {
    let pool = pool(2, 8).await;
    let text = "many words in a row, ".repeat(5000);
    let ids = pool.encode_text(text.clone(), false).await.unwrap();
    assert!(ids == O200K.encode_ordinary(&text), "slices must not change the ids");
    assert_eq!(pool.decode(ids, true).await.unwrap(), text);
    assert_eq!(pool.encode_text("<|end|>".into(), true).await.unwrap(), [200_007]);
    let prompt = vec![Segment::Token(200_006), Segment::Text("user".into())];
    assert_eq!(pool.encode(prompt.clone()).await.unwrap(), O200K.encode_segments(prompt));
    let failed = pool.render_and_encode(|_| Err("no such tool")).await;
    assert!(matches!(failed, Err(RenderError::Render("no such tool"))), "{failed:?}");
}

#[tokio::test]
async fn a_short_prompt_overtakes_long_ones_on_a_single_thread() {
    let pool = pool(1, 64).await;
    let done = Arc::new(AtomicUsize::new(0));
    // The gate holds the one thread until all prompts wait in the queue, the long ones first.
    let (open, gate) = mpsc::channel::<()>();
    let held = tokio::spawn({
        let pool = pool.clone();
        async move { pool.run(move |_| gate.recv()).await }
    });
    let mut long = Vec::new();
    for _ in 0..8 {
        let (pool, done) = (pool.clone(), done.clone());
        long.push(tokio::spawn(async move {
            let ids = pool.encode_text("some words to encode ".repeat(25_000), false).await;
            done.fetch_add(1, Ordering::SeqCst);
            ids.map(|ids| ids.len())
        }));
    }
    while pool.stats().await.unwrap().jobs < 9 {
        tokio::task::yield_now().await;
    }
    let short = tokio::spawn({
        let (pool, done) = (pool.clone(), done.clone());
        async move {
            pool.encode_text("hi".into(), false).await.unwrap();
            done.load(Ordering::SeqCst)
        }
    });
    while pool.stats().await.unwrap().jobs < 10 {
        tokio::task::yield_now().await;
    }
    open.send(()).unwrap();
    assert_eq!(short.await.unwrap(), 0, "no long prompt may finish before the short one behind it");
    for task in long {
        assert!(task.await.unwrap().unwrap() > 100_000 / 2);
    }
    held.await.unwrap().unwrap().unwrap();
}

#[tokio::test]
async fn more_jobs_than_allowed_are_refused() {
    let pool = pool(1, 1).await;
    let (open, gate) = mpsc::channel::<()>();
    let first = tokio::spawn({
        let pool = pool.clone();
        async move { pool.run(move |_| gate.recv().is_ok()).await }
    });
    while pool.stats().await.unwrap().jobs == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(pool.encode_text("hi".into(), false).await, Err(PoolError::Busy { max_jobs: 1 }));
    open.send(()).unwrap();
    assert_eq!(first.await.unwrap(), Ok(true));
    while pool.stats().await.unwrap().jobs > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(pool.encode_text("hi".into(), false).await.map(|ids| ids.len()), Ok(1));
}

#[tokio::test]
async fn a_job_whose_caller_has_gone_is_not_done() {
    let pool = pool(1, 8).await;
    let (open, gate) = mpsc::channel::<()>();
    let held = tokio::spawn({
        let pool = pool.clone();
        async move { pool.run(move |_| gate.recv().is_ok()).await }
    });
    let ran = Arc::new(AtomicUsize::new(0));
    let abandoned = tokio::spawn({
        let (pool, ran) = (pool.clone(), ran.clone());
        async move { pool.run(move |_| ran.fetch_add(1, Ordering::SeqCst)).await }
    });
    while pool.stats().await.unwrap().jobs < 2 {
        tokio::task::yield_now().await;
    }
    abandoned.abort();
    assert!(abandoned.await.unwrap_err().is_cancelled());
    open.send(()).unwrap();
    assert_eq!(held.await.unwrap(), Ok(true));
    while pool.stats().await.unwrap().jobs > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(ran.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_defect_in_a_job_ends_that_job_alone() {
    let pool = pool(1, 8).await;
    let failed = pool.run(|_| -> u32 { panic!("deliberate panic of a test job") }).await;
    assert_eq!(failed, Err(PoolError::Failed));
    assert_eq!(pool.encode_text("hi".into(), false).await.map(|ids| ids.len()), Ok(1));
}

#[tokio::test]
async fn a_stopped_pool_says_so() {
    let pool = pool(1, 8).await;
    pool.actor().stop_and_wait(None, None).await.unwrap();
    assert_eq!(pool.encode_text("hi".into(), false).await, Err(PoolError::Stopped));
    assert_eq!(pool.stats().await, Err(PoolError::Stopped));
}
