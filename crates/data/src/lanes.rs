//! Eight numbers that are added and multiplied together.
//!
//! `rustfft` takes any type of numbers, so a transform of `Lanes` is eight transforms at once, and the
//! compiler uses vector instructions. Each lane has the bits of the same computation with one `f32`,
//! on every machine.

use rustfft::num_traits::{FromPrimitive, Num, One, Signed, Zero};
use std::array::from_fn;
use std::ops::{Add, AddAssign, Div, Mul, Neg, Rem, Sub};

/// Number of lanes.
pub(crate) const LANES: usize = 8;

/// Eight independent numbers.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
#[repr(align(32))]
pub(crate) struct Lanes(pub(crate) [f32; LANES]);

impl Lanes {
    /// The same number in every lane.
    #[inline(always)]
    pub(crate) fn all(x: f32) -> Self {
        Self([x; LANES])
    }

    /// The square root of each lane.
    #[inline(always)]
    pub(crate) fn sqrt(mut self) -> Self {
        for x in &mut self.0 {
            *x = x.sqrt();
        }
        self
    }
}

/// Implements an operator of two numbers for each lane.
macro_rules! operator {
    ($($name:ident $method:ident $assign:tt),*) => {$(
        impl $name for Lanes {
            type Output = Self;

            #[inline(always)]
            fn $method(mut self, other: Self) -> Self {
                for i in 0..LANES {
                    self.0[i] $assign other.0[i];
                }
                self
            }
        }
    )*};
}
operator!(Add add +=, Sub sub -=, Mul mul *=, Div div /=, Rem rem %=);

impl AddAssign for Lanes {
    #[inline(always)]
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Neg for Lanes {
    type Output = Self;

    #[inline(always)]
    fn neg(mut self) -> Self {
        for x in &mut self.0 {
            *x = -*x;
        }
        self
    }
}

impl Zero for Lanes {
    #[inline(always)]
    fn zero() -> Self {
        Self::all(0.0)
    }

    fn is_zero(&self) -> bool {
        self.0.iter().all(|x| *x == 0.0)
    }
}

impl One for Lanes {
    #[inline(always)]
    fn one() -> Self {
        Self::all(1.0)
    }
}

impl Num for Lanes {
    type FromStrRadixErr = <f32 as Num>::FromStrRadixErr;

    fn from_str_radix(text: &str, radix: u32) -> Result<Self, Self::FromStrRadixErr> {
        f32::from_str_radix(text, radix).map(Self::all)
    }
}

impl Signed for Lanes {
    fn abs(&self) -> Self {
        Self(self.0.map(f32::abs))
    }

    fn abs_sub(&self, other: &Self) -> Self {
        Self(from_fn(|i| (self.0[i] - other.0[i]).max(0.0)))
    }

    fn signum(&self) -> Self {
        Self(self.0.map(f32::signum))
    }

    fn is_positive(&self) -> bool {
        self.0.iter().all(|x| *x > 0.0)
    }

    fn is_negative(&self) -> bool {
        self.0.iter().all(|x| *x < 0.0)
    }
}

impl FromPrimitive for Lanes {
    fn from_i64(x: i64) -> Option<Self> {
        f32::from_i64(x).map(Self::all)
    }

    fn from_u64(x: u64) -> Option<Self> {
        f32::from_u64(x).map(Self::all)
    }

    fn from_f64(x: f64) -> Option<Self> {
        f32::from_f64(x).map(Self::all)
    }
}
