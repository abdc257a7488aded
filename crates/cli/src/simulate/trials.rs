//! Parallel runs on the cores of this machine. Each run uses a single core, so the number of
//! threads does not change results.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

/// Runs `work` for every item of `items` on `threads` threads (at least one). Passes each result,
/// with the item's index, to `done` on the calling thread as it completes. If `done` returns false,
/// items that have not started are skipped.
pub fn parallel<I: Sync, R: Send>(
    items: &[I],
    threads: usize,
    work: impl Fn(usize, &I) -> R + Sync,
    mut done: impl FnMut(usize, R) -> bool,
) {
    let next = AtomicUsize::new(0);
    let (sender, receiver) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, items.len().max(1)) {
            let (sender, next, work) = (sender.clone(), &next, &work);
            scope.spawn(move || {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(index) else { return };
                    if sender.send((index, work(index, item))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        for (index, result) in receiver {
            if !done(index, result) {
                next.store(items.len(), Ordering::Relaxed);
                return;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_item_runs_once_for_any_number_of_threads() {
        let items: Vec<u64> = (0..100).collect();
        for threads in [0, 1, 3, 200] {
            let mut squares = vec![None; items.len()];
            parallel(
                &items,
                threads,
                |_, n| n * n,
                |index, square| {
                    assert_eq!(squares[index].replace(square), None);
                    true
                },
            );
            assert!(squares.iter().zip(&items).all(|(square, n)| *square == Some(n * n)));
        }
    }

    #[test]
    fn stopping_skips_items_that_have_not_started() {
        let items: Vec<u64> = (0..1_000_000).collect();
        let mut seen = 0;
        parallel(
            &items,
            2,
            |_, n| *n,
            |_, _| {
                seen += 1;
                seen < 10
            },
        );
        assert_eq!(seen, 10);
    }
}
