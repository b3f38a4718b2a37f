//! Calls into a library that panics on damaged files.
//!
//! A panic becomes `None`, and its message is not printed, because it can contain a text.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// The result of the call; `None` if it panics.
///
/// A value that the call may have modified must not be used after a panic.
pub fn guarded<T>(call: impl FnOnce() -> T) -> Option<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = take_hook();
        set_hook(Box::new(move |info| {
            if !QUIET.get() {
                previous(info)
            }
        }));
    });
    let before = QUIET.replace(true);
    let result = catch_unwind(AssertUnwindSafe(call)).ok();
    QUIET.set(before);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_gives_none_and_other_panics_still_print() {
        assert_eq!(guarded(|| 7), Some(7));
        assert_eq!(
            guarded(|| if QUIET.get() {
                panic!("secret")
            }),
            None
        );
        assert!(!QUIET.get());
    }
}
