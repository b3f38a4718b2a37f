//! The type of values that were computed from records.

/// A value computed from records, which leaves this crate only with noise.
///
/// Other crates cannot read, copy, print or serialize it:
///
/// ```compile_fail,E0599
/// let secret = curator::Private::new(1.0);
/// let copy = secret.clone();
/// ```
/// ```compile_fail,E0277
/// println!("{}", curator::Private::new(1.0));
/// ```
/// ```compile_fail,E0277
/// serde_json::to_string(&curator::Private::new(1.0));
/// ```
/// ```compile_fail,E0614
/// let value = *curator::Private::new(1.0);
/// ```
/// ```compile_fail,E0616
/// let value = curator::Private::new(1.0).value;
/// ```
/// ```compile_fail,E0624
/// let value = curator::Private::new(1.0).into_inner();
/// ```
/// ```compile_fail,E0624
/// let secret = curator::Private::new(1.0);
/// let value = secret.inner();
/// ```
/// Its debug output does not show the value:
/// ```
/// assert_eq!(format!("{:?}", curator::Private::new(1.0)), "Private(…)");
/// ```
pub struct Private<T> {
    value: T,
}

impl<T> Private<T> {
    /// Wraps a value.
    pub fn new(value: T) -> Self {
        Self { value }
    }

    /// Returns a reference to the value, for computations inside this crate.
    pub(crate) fn inner(&self) -> &T {
        &self.value
    }

    /// Unwraps the value. Called where noise is added, and by the non-private oracle.
    pub(crate) fn into_inner(self) -> T {
        self.value
    }
}

impl<T> std::fmt::Debug for Private<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Private(…)")
    }
}
