//! Errors of the library as exceptions of the package.

use muffle::Category;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyType;

/// An error of the library.
pub(crate) struct Error(muffle::Error);

impl<E: Into<muffle::Error>> From<E> for Error {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl From<Error> for PyErr {
    fn from(Error(error): Error) -> Self {
        let class = match error.category() {
            Category::Input => "InputError",
            Category::Promise => "PromiseError",
            Category::Fault => "FaultError",
            Category::Stopped => "Stopped",
        };
        exception(class, error.to_string())
    }
}

/// An invalid argument.
pub(crate) fn invalid(message: impl Into<String>) -> PyErr {
    exception("InputError", message.into())
}

/// A state that only an error of the program can lead to.
pub(crate) fn internal(error: impl std::fmt::Display) -> PyErr {
    exception("FaultError", error.to_string())
}

/// Makes an exception of a class of `muffle._errors`.
pub(crate) fn exception(class: &str, message: String) -> PyErr {
    Python::attach(|py| {
        let class = py.import("muffle._errors").and_then(|module| module.getattr(class));
        match class.and_then(|class| Ok(class.cast_into::<PyType>()?)) {
            Ok(class) => PyErr::from_type(class, message),
            Err(_) => PyRuntimeError::new_err(message),
        }
    })
}
