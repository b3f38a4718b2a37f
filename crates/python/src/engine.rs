//! The engine of a Python object, as the curator sees it.
//!
//! The object is `muffle.torch._seam.Seam`. An example holds the index of its record, which stays in
//! Python. Tensors cross as bytes, one at a time.

use engine::{
    Accumulator, CheckedQuery, Engine, Error, Example, Input, Isolation, Observed, StepScale, Sum,
    SumPrecision, Target, Weights,
};
use protocol::{Geometry, GeometryKind, Params, Role, Trainable};
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyByteArrayMethods};
use std::sync::{Arc, Mutex, PoisonError};
use tensor::Array;
use tensor::outer::to_steps;

/// The exception that an engine raised, to be the cause of the error of the run.
#[derive(Clone, Default)]
pub(crate) struct Raised(Arc<Mutex<Option<PyErr>>>);

impl Raised {
    /// Takes the exception.
    pub(crate) fn take(&self) -> Option<PyErr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn set(&self, error: PyErr) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }
}

/// An engine in Python.
pub(crate) struct PythonEngine {
    seam: Py<PyAny>,
    tensors: Vec<Trainable>,
    precision: Option<SumPrecision>,
    /// The geometry that Python has; `None` if not known.
    geometry: Option<Geometry>,
    raised: Raised,
}

/// The number of tensors is 0 or more; each is f32.
type Description = (String, Vec<usize>, String, Option<usize>, bool, bool);

impl PythonEngine {
    /// Asks the object for its trainable tensors.
    pub(crate) fn new(seam: Py<PyAny>, raised: Raised) -> PyResult<Self> {
        let tensors = Python::attach(|py| {
            let described: Vec<Description> = seam.call_method0(py, "trainable")?.extract(py)?;
            described.into_iter().map(trainable).collect::<PyResult<_>>()
        })?;
        Ok(Self { seam, tensors, precision: None, geometry: None, raised })
    }

    /// Reads the current values of all tensors.
    pub(crate) fn params(&self) -> PyResult<Params> {
        Python::attach(|py| {
            let tensor = |(index, tensor): (usize, &Trainable)| {
                let elements: usize = tensor.shape.iter().product();
                let bytes = new_bytes(py, elements * size_of::<f32>())?;
                self.seam.call_method1(py, "read_parameter", (index, &bytes))?;
                let values: Vec<f32> = bytemuck::pod_collect_to_vec(&bytes.to_vec());
                Array::new(tensor.shape.clone(), values).map_err(crate::error::internal)
            };
            Ok(Params::new(self.tensors.iter().enumerate().map(tensor).collect::<PyResult<_>>()?))
        })
    }

    /// Calls the object. An exception is retained as the cause of the error.
    fn call<T>(
        &self,
        examples: usize,
        call: impl FnOnce(Python<'_>, &Bound<'_, PyAny>) -> PyResult<T>,
    ) -> Result<T, Error> {
        Python::attach(|py| {
            call(py, self.seam.bind(py)).map_err(|error| {
                if error.is_instance_of::<PyMemoryError>(py) {
                    return Error::OutOfMemory { examples, bytes: 0 };
                }
                let text = error.to_string();
                self.raised.set(error);
                Error::Device(text.into())
            })
        })
    }

    /// Sends a geometry, if Python has another one.
    fn send(&mut self, geometry: &Geometry) -> Result<(), Error> {
        if self.geometry.as_ref() == Some(geometry) {
            return Ok(());
        }
        self.geometry = None;
        self.call(0, |py, seam| {
            let bytes = |array: &Array| PyByteArray::new(py, bytemuck::cast_slice(array.data()));
            let answer = match geometry {
                Geometry::Identity => seam.call_method0("use_identity"),
                Geometry::Affine { center, scale } => {
                    let tensors = center.iter().zip(scale.iter());
                    let tensors: Vec<_> =
                        tensors.map(|(center, scale)| (bytes(center), bytes(scale))).collect();
                    seam.call_method1("use_affine", (tensors,))
                }
                Geometry::Tangent { frames } => {
                    let frame = |frame: &protocol::Frame| {
                        let basis = bytes(&frame.right_basis);
                        let inverses = (bytes(&frame.left_inverse), bytes(&frame.right_inverse));
                        (frame.left, frame.right, basis, inverses.0, inverses.1)
                    };
                    let frames: Vec<_> = frames.iter().map(frame).collect();
                    seam.call_method1("use_tangent", (frames,))
                }
            };
            answer.map(drop)
        })?;
        self.geometry = Some(geometry.clone());
        Ok(())
    }

    /// Returns the elements of a tensor.
    fn elements(&self, index: usize) -> usize {
        self.tensors[index].shape.iter().product()
    }
}

/// Allocates bytes that Python fills.
fn new_bytes(py: Python<'_>, length: usize) -> PyResult<Bound<'_, PyByteArray>> {
    PyByteArray::new_with(py, length, |_| Ok(()))
}

/// Converts the description of a tensor.
fn trainable(description: Description) -> PyResult<Trainable> {
    let (name, shape, role, partner, transposed, predicts_labels) = description;
    let role = match (&*role, partner) {
        ("hidden", _) => Role::Hidden,
        ("table", _) => Role::Table,
        ("head", _) => Role::Head,
        ("vector", _) => Role::Vector,
        ("left", Some(partner)) => Role::Left(partner),
        ("right", Some(partner)) => Role::Right(partner),
        _ => return Err(crate::error::invalid(format!("{name}: unknown role {role:?}"))),
    };
    Ok(Trainable { name, shape, role, transposed, predicts_labels })
}

/// The record of an index.
pub(crate) fn record(index: u32) -> Example {
    Example::new(Input::Tokens(vec![index]), Target::Value(0.0))
}

/// A probe record: its number of tokens is the shape, and its first token the content.
///
/// So the probe's variants, which copy tokens between examples, keep shapes and change contents.
fn probe_record(shape: usize, content: u32) -> Example {
    Example::labelled(vec![content; 3 - shape], 0)
}

/// Returns the index of a record, or -1 - (3 · shape + content) of a probe record.
fn index_of(example: &Example) -> Result<i64, Error> {
    let refuse = |reason: String| Error::Example { index: 0, reason };
    let part = example.only_part().map_err(refuse)?;
    match (&part.input, &part.target) {
        (Input::Tokens(tokens), Target::Value(_)) if tokens.len() == 1 => Ok(i64::from(tokens[0])),
        (Input::Tokens(tokens), Target::Class(_)) if (1..=3).contains(&tokens.len()) => {
            let shape = 3 - tokens.len() as i64;
            Ok(-1 - (3 * shape + i64::from(tokens[0].min(2))))
        }
        _ => Err(refuse("expected the index of a record".into())),
    }
}

fn indices_of(examples: &[&Example]) -> Result<Vec<i64>, Error> {
    examples.iter().map(|example| index_of(example)).collect()
}

impl Engine for PythonEngine {
    fn trainable(&self) -> Vec<Trainable> {
        self.tensors.clone()
    }

    fn probe_examples(&self) -> Vec<Example> {
        vec![probe_record(0, 0), probe_record(1, 1), probe_record(2, 2)]
    }

    fn validate(&mut self, example: &Example) -> Result<(), Error> {
        let index = index_of(example)?;
        Python::attach(|py| {
            let error = match self.seam.call_method1(py, "validate", (index,)) {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            let reason = error.value(py).to_string();
            self.raised.set(error);
            Err(Error::Example { index: 0, reason })
        })
    }

    fn load(&mut self, params: &Params) -> Result<(), Error> {
        for (index, (array, tensor)) in params.iter().zip(&self.tensors).enumerate() {
            if array.shape() != tensor.shape {
                return Err(Error::Params(format!(
                    "{}: expected shape {:?}, got {:?}",
                    tensor.name,
                    tensor.shape,
                    array.shape()
                )));
            }
            self.call(0, |py, seam| {
                let bytes = PyByteArray::new(py, bytemuck::cast_slice(array.data()));
                seam.call_method1("write_parameter", (index, bytes)).map(drop)
            })?;
        }
        self.call(0, |_, seam| seam.call_method0("loaded").map(drop))
    }

    fn unload(&mut self) {
        self.precision = None;
        self.geometry = None;
        // Nothing depends on it: the next query starts a new sum.
        let _ = self.call(0, |_, seam| seam.call_method0("unload").map(drop));
    }

    fn losses(&mut self, examples: &[&Example]) -> Result<Vec<f64>, Error> {
        let indices = indices_of(examples)?;
        self.call(examples.len(), |_, seam| seam.call_method1("losses", (indices,))?.extract())
    }

    fn start_sum(&mut self, precision: &SumPrecision) -> Result<(), Error> {
        self.precision = Some(precision.clone());
        self.call(0, |_, seam| seam.call_method0("start_sum").map(drop))
    }

    fn observe(
        &mut self,
        examples: &[&Example],
        query: &CheckedQuery<'_>,
    ) -> Result<Observed, Error> {
        let indices = indices_of(examples)?;
        self.send(query.geometry())?;
        let count = query.blocks().count();
        let mut blocks = vec![Vec::new(); count];
        (0..self.tensors.len()).for_each(|k| blocks[query.blocks().of(k)].push(k));
        let (losses, squares): (Vec<f64>, Vec<f64>) = self.call(examples.len(), |_, seam| {
            seam.call_method1("observe", (indices, blocks))?.extract()
        })?;
        if losses.len() != examples.len() || squares.len() != examples.len() * count {
            return Err(Error::Device("the engine observed other examples".into()));
        }
        Ok(Observed::new(losses, squares, count))
    }

    fn accumulate(&mut self, weights: &Weights) -> Result<(), Error> {
        let weights: Vec<&[f32]> =
            (0..weights.blocks()).map(|block| weights.block(block)).collect();
        self.call(0, |_, seam| seam.call_method1("accumulate", (weights,)).map(drop))
    }

    fn take_sum(&mut self) -> Result<Sum, Error> {
        let precision = self.precision.clone().ok_or(Error::Order("no sum was started"))?;
        let scale = |index: usize| match &precision {
            SumPrecision::Float => Ok(None),
            SumPrecision::Steps(scales) => match scales.get(index) {
                Some(scale) => Ok(Some(scale.clone())),
                None => Err(Error::Order("the sum has another number of tensors")),
            },
        };
        let mut sums = Vec::with_capacity(self.tensors.len());
        for index in 0..self.tensors.len() {
            let values: Vec<f64> = self.call(0, |py, seam| {
                let bytes = new_bytes(py, self.elements(index) * size_of::<f64>())?;
                seam.call_method1("read_sum", (index, &bytes))?;
                Ok(bytemuck::pod_collect_to_vec(&bytes.to_vec()))
            })?;
            sums.push(accumulator(values, scale(index)?));
        }
        self.call(0, |_, seam| seam.call_method0("end_sum").map(drop))?;
        Ok(Sum::new(sums))
    }

    /// The sum of a lot is rounded to the grid as a whole. Two sums that differ in one example
    /// differ by at most one step more in each element, which is twice the half step of a rounding.
    fn roundings(&self) -> Vec<usize> {
        vec![2; self.tensors.len()]
    }

    fn isolation(&self) -> Isolation {
        Isolation::UpToRounding
    }

    fn supports(&self, _geometry: GeometryKind) -> bool {
        true
    }
}

/// Rounds a sum to its grid.
fn accumulator(values: Vec<f64>, scale: Option<StepScale>) -> Accumulator {
    match scale {
        None => Accumulator::Float(values),
        Some(scale) => Accumulator::Steps {
            totals: values
                .into_iter()
                .enumerate()
                .map(|(i, value)| to_steps(value * f64::from(scale.of(i))))
                .collect(),
            scale,
        },
    }
}
