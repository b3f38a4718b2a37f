//! A value that must not leave.

/// A value computed from records. It has no way out of this crate but the noise.
///
/// It cannot be read, copied, printed or written down outside:
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
/// let value = curator::Private::new(1.0).out();
/// ```
/// ```compile_fail,E0624
/// let secret = curator::Private::new(1.0);
/// let value = secret.within();
/// ```
/// And what it prints for a programmer says nothing:
/// ```
/// assert_eq!(format!("{:?}", curator::Private::new(1.0)), "Private(…)");
/// ```
pub struct Private<T> {
    value: T,
}

impl<T> Private<T> {
    /// Puts a value in.
    pub fn new(value: T) -> Self {
        Self { value }
    }

    /// Looks at it, inside this crate.
    pub(crate) fn within(&self) -> &T {
        &self.value
    }

    /// The one exit. It is called where noise is added, and where a run that promises nothing says
    /// so.
    pub(crate) fn out(self) -> T {
        self.value
    }
}

impl<T> std::fmt::Debug for Private<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Private(…)")
    }
}
