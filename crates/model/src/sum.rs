//! Where the weighted gradients of records are added up.

use protocol::Params;
use tensor::outer::{Scale, Totals, to_steps};

/// A sum of weighted gradients, tensor by tensor.
///
/// In whole steps of a public grid it is exact: every record's share is rounded to the grid by
/// itself, and integers are added. So the share of a record is the same, bit for bit, whatever
/// other records there are, and the sum does not depend on how a lot is divided into micro-batches
/// or among processes. In floating point it serves training without privacy.
///
/// The sums are private: they do not print.
pub struct Sum {
    tensors: Vec<Accumulator>,
}

/// The sum of one tensor.
pub enum Accumulator {
    /// In whole steps.
    Steps {
        /// The sum so far.
        totals: Vec<i64>,
        /// The size of a step.
        scale: StepScale,
    },
    /// In floating point.
    Float(Vec<f64>),
}

/// How many steps of the grid a unit of a gradient has.
#[derive(Clone, Debug, PartialEq)]
pub enum StepScale {
    /// So many, a power of two, where no weighted gradient of a record has an element of
    /// [`tensor::outer::NARROW`] steps or more.
    Narrow(f32),
    /// So many, a power of two.
    Wide(f32),
    /// Each element has its own.
    Each(Vec<f32>),
}

impl Accumulator {
    /// Zeros, in steps.
    pub fn steps(elements: usize, scale: StepScale) -> Self {
        Self::Steps { totals: vec![0; elements], scale }
    }

    /// Adds one record's gradient, times its weight. A weight of 0 adds nothing, whatever the
    /// gradient is, and a gradient that is not finite adds nothing, whatever the weight is.
    ///
    /// # Panics
    /// If the gradient has another number of elements.
    pub fn add(&mut self, weight: f32, gradient: impl ExactSizeIterator<Item = f64> + Clone) {
        assert_eq!(gradient.len(), self.len(), "elements of a gradient");
        if weight == 0.0 || !gradient.clone().all(f64::is_finite) {
            return;
        }
        let weight = f64::from(weight);
        match self {
            Self::Float(totals) => {
                totals.iter_mut().zip(gradient).for_each(|(total, g)| *total += weight * g)
            }
            Self::Steps { totals, scale } => {
                for (i, (total, g)) in totals.iter_mut().zip(gradient).enumerate() {
                    *total = total.wrapping_add(to_steps(weight * g * f64::from(scale.of(i))));
                }
            }
        }
    }

    /// How many elements.
    pub fn len(&self) -> usize {
        match self {
            Self::Steps { totals, .. } => totals.len(),
            Self::Float(totals) => totals.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The sum as numbers.
    pub fn value(&self, i: usize) -> f64 {
        match self {
            Self::Steps { totals, scale } => totals[i] as f64 / f64::from(scale.of(i)),
            Self::Float(totals) => totals[i],
        }
    }

    /// For the kernels.
    pub(crate) fn totals(&mut self) -> Totals<'_> {
        match self {
            Self::Float(totals) => Totals::Float(totals),
            Self::Steps { totals, scale } => Totals::Steps(
                totals,
                match scale {
                    StepScale::Narrow(scale) => Scale::Narrow(*scale),
                    StepScale::Wide(scale) => Scale::Wide(*scale),
                    StepScale::Each(scales) => Scale::Each(scales),
                },
            ),
        }
    }

    fn clear(&mut self) {
        match self {
            Self::Steps { totals, .. } => totals.fill(0),
            Self::Float(totals) => totals.fill(0.0),
        }
    }
}

impl StepScale {
    /// Steps of a unit of element i.
    #[inline]
    pub fn of(&self, i: usize) -> f32 {
        match self {
            Self::Narrow(scale) | Self::Wide(scale) => *scale,
            Self::Each(scales) => scales[i],
        }
    }
}

impl Sum {
    /// Of these tensors.
    pub fn new(tensors: Vec<Accumulator>) -> Self {
        Self { tensors }
    }

    /// Zeros in floating point, for tensors of these shapes.
    pub fn float(like: &Params) -> Self {
        Self::new(like.iter().map(|tensor| Accumulator::Float(vec![0.0; tensor.len()])).collect())
    }

    /// The tensors.
    pub fn iter(&self) -> std::slice::Iter<'_, Accumulator> {
        self.tensors.iter()
    }

    /// The tensors, to be added to.
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, Accumulator> {
        self.tensors.iter_mut()
    }

    /// The tensors themselves.
    pub fn into_tensors(self) -> Vec<Accumulator> {
        self.tensors
    }

    /// Sets all to zero.
    pub fn clear(&mut self) {
        self.tensors.iter_mut().for_each(Accumulator::clear);
    }

    /// Whether it has the tensors of these parameters.
    pub fn fits(&self, params: &Params) -> bool {
        self.tensors.len() == params.len()
            && self.tensors.iter().zip(params.iter()).all(|(sum, tensor)| sum.len() == tensor.len())
    }
}

impl std::ops::Index<usize> for Sum {
    type Output = Accumulator;

    fn index(&self, tensor: usize) -> &Accumulator {
        &self.tensors[tensor]
    }
}

impl std::ops::IndexMut<usize> for Sum {
    fn index_mut(&mut self, tensor: usize) -> &mut Accumulator {
        &mut self.tensors[tensor]
    }
}

impl std::fmt::Debug for Sum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sum({} tensors)", self.tensors.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_rounded_one_by_one() {
        let scales =
            [StepScale::Narrow(8.0), StepScale::Wide(8.0), StepScale::Each(vec![8.0, 2.0])];
        for scale in scales {
            let mut sum = Accumulator::steps(2, scale.clone());
            for _ in 0..3 {
                sum.add(0.5, [0.3, -1.3].into_iter());
            }
            sum.add(0.0, [f64::NAN, f64::INFINITY].into_iter());
            sum.add(0.5, [0.3, f64::INFINITY].into_iter());
            // 0.15 is one step of an eighth, 0.65 five of them or one of a half.
            assert_eq!(sum.value(0), 3.0 / 8.0, "{scale:?}");
            assert_eq!(
                sum.value(1),
                if matches!(scale, StepScale::Each(_)) { -3.0 / 2.0 } else { -15.0 / 8.0 },
                "{scale:?}"
            );
        }
    }

    #[test]
    fn it_does_not_print() {
        let mut sum = Sum::new(vec![Accumulator::Float(vec![0.0])]);
        sum[0].add(1.0, std::iter::once(123.5));
        assert_eq!(format!("{sum:?}"), "Sum(1 tensors)");
    }
}
