//! Calls into a library that panics on damaged files: a panic becomes a refusal, and does not
//! print, for what it prints can be a text.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// What the call gives; `None` if it panics. What it was at must not be used afterwards, unless it
/// was only looked at.
pub(crate) fn guarded<T>(call: impl FnOnce() -> T) -> Option<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = take_hook();
        set_hook(Box::new(move |info| {
            if !QUIET.get() {
                usual(info)
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
    fn a_panic_is_none_and_others_still_print() {
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
