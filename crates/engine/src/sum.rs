//! Sums of weighted gradients.

use tensor::outer::{Scale, Totals, to_steps};

/// A sum of weighted gradients, tensor by tensor.
///
/// In whole steps of a public grid it is exact: every example's contribution is rounded to the grid
/// by itself, and integers are added. So a contribution is the same, bit for bit, whatever other
/// examples there are, and the sum does not depend on how a lot is divided into micro-batches or
/// among processes. In floating point it serves training without privacy.
///
/// Sums are private: debug output hides them.
pub struct Sum {
    tensors: Vec<Accumulator>,
}

/// The sum of one tensor.
pub enum Accumulator {
    /// In whole steps.
    Steps {
        /// The sum so far.
        totals: Vec<i64>,
        /// The number of steps per unit.
        scale: StepScale,
    },
    /// In floating point.
    Float(Vec<f64>),
}

/// Steps of the grid per unit of a gradient.
#[derive(Clone, Debug, PartialEq)]
pub enum StepScale {
    /// A power of two: each element of an example's weighted gradient has fewer than
    /// [`tensor::outer::NARROW`] steps.
    Narrow(f32),
    /// A power of two.
    Wide(f32),
    /// One for each element.
    Each(Vec<f32>),
}

impl Accumulator {
    /// Creates a sum of zero, in steps.
    pub fn steps(elements: usize, scale: StepScale) -> Self {
        Self::Steps { totals: filled_vec(elements, 0), scale }
    }

    /// Adds one example's gradient times its weight.
    ///
    /// A weight of 0 adds nothing, whatever the gradient is, and a gradient that is not finite adds
    /// nothing, whatever the weight is.
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

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::Steps { totals, .. } => totals.len(),
            Self::Float(totals) => totals.len(),
        }
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns element i of the sum.
    pub fn value(&self, i: usize) -> f64 {
        match self {
            Self::Steps { totals, scale } => totals[i] as f64 / f64::from(scale.of(i)),
            Self::Float(totals) => totals[i],
        }
    }

    /// Returns the totals in the form that the kernels of `tensor` accept.
    pub fn totals(&mut self) -> Totals<'_> {
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

/// Creates a list of one value by writing every element.
///
/// `vec![0; n]` maps pages lazily. A sum reads each element before it writes it, so that every
/// page would fault twice, the second time with an interrupt of all threads.
fn filled_vec<T: Clone>(elements: usize, value: T) -> Vec<T> {
    let mut list = Vec::with_capacity(elements);
    // Hidden from the compiler, which would use lazily mapped pages for zeros.
    list.resize(elements, std::hint::black_box(value));
    list
}

impl StepScale {
    /// Returns the steps per unit of element i.
    #[inline]
    pub fn of(&self, i: usize) -> f32 {
        match self {
            Self::Narrow(scale) | Self::Wide(scale) => *scale,
            Self::Each(scales) => scales[i],
        }
    }
}

/// The arithmetic in which a sum is computed.
#[derive(Clone, Debug, PartialEq)]
pub enum SumPrecision {
    /// Exact, in whole steps of a grid for each tensor.
    Steps(Vec<StepScale>),
    /// Floating point, for training without privacy.
    Float,
}

impl SumPrecision {
    /// Creates a sum of zero; `None` if there is not one grid for each tensor.
    ///
    /// `elements` has the number of elements of each tensor.
    pub fn zeros(&self, elements: impl ExactSizeIterator<Item = usize>) -> Option<Sum> {
        let tensors = match self {
            Self::Float => elements.map(|n| Accumulator::Float(filled_vec(n, 0.0))).collect(),
            Self::Steps(scales) if scales.len() == elements.len() => elements
                .zip(scales)
                .map(|(elements, scale)| Accumulator::steps(elements, scale.clone()))
                .collect(),
            Self::Steps(_) => return None,
        };
        Some(Sum { tensors })
    }

    /// Whether a sum has this precision.
    pub fn fits(&self, sum: &Sum) -> bool {
        match self {
            Self::Float => sum.iter().all(|sum| matches!(sum, Accumulator::Float(_))),
            Self::Steps(scales) => {
                let same = |(sum, expected): (&Accumulator, &StepScale)| match sum {
                    Accumulator::Steps { scale, .. } => scale == expected,
                    Accumulator::Float(_) => false,
                };
                sum.tensors.len() == scales.len() && sum.iter().zip(scales).all(same)
            }
        }
    }
}

impl Sum {
    /// Creates a sum from those of its tensors.
    pub fn new(tensors: Vec<Accumulator>) -> Self {
        Self { tensors }
    }

    /// Iterates over the sums of the tensors.
    pub fn iter(&self) -> std::slice::Iter<'_, Accumulator> {
        self.tensors.iter()
    }

    /// Iterates over the sums of the tensors, mutably.
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, Accumulator> {
        self.tensors.iter_mut()
    }

    /// Returns the sums of the tensors.
    pub fn into_tensors(self) -> Vec<Accumulator> {
        self.tensors
    }

    /// Sets all elements to zero.
    pub fn clear(&mut self) {
        self.tensors.iter_mut().for_each(Accumulator::clear);
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
    fn contributions_are_rounded_one_by_one() {
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
    fn sums_do_not_print() {
        let mut sum = Sum::new(vec![Accumulator::Float(vec![0.0])]);
        sum[0].add(1.0, std::iter::once(123.5));
        assert_eq!(format!("{sum:?}"), "Sum(1 tensors)");
    }
}
