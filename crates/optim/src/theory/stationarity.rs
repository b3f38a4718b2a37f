//! Stationarity bound: Theorem 3.4, Corollaries B.6 and B.7, equations (10) and (13).

use super::{
    GradientTail, Quality, Tracking, counted, not_negative, positive, refused, tracking_noise,
};
use protocol::Refused;
use std::fmt;

/// The parts of Theorem 3.4 that do not depend on the number of steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Problem {
    /// Rows of the matrix.
    pub rows: usize,
    /// Its columns.
    pub cols: usize,
    /// D₀ = f(W₀) − inf f.
    pub descent: f64,
    /// L with ‖∇f(X) − ∇f(Y)‖_* ≤ L ‖X − Y‖_op (Assumption 3.1).
    pub smoothness: f64,
    /// B: what the sum over a lot is divided by.
    pub lot: f64,
    /// σ: the noise has the standard deviation σC/B.
    pub noise_multiplier: f64,
    /// Error of the directions in the worst step.
    pub quality: Quality,
}

impl Problem {
    /// Evaluates Theorem 3.4. ε_q = 1 is refused, since the directions may then be useless.
    pub fn bound(&self, horizon: &Horizon, tail: GradientTail) -> Result<Stationarity, Refused> {
        counted("the rows", self.rows)?;
        counted("the columns", self.cols)?;
        let descent = not_negative("the descent D₀", self.descent)?;
        let smoothness = not_negative("the smoothness L", self.smoothness)?;
        if !(self.quality.chi < f64::INFINITY) {
            return Err(refused(
                "the error ε of the iteration",
                "a number below 1",
                self.quality.epsilon,
            ));
        }
        let Horizon { steps, learning_rate, momentum, clip } = *horizon;
        let shape = (self.rows, self.cols);
        let settings = (clip, self.lot, self.noise_multiplier);
        let noise = tracking_noise(shape, settings, momentum, steps)?;
        let learning_rate = positive("the learning rate", learning_rate)?;
        Ok(Stationarity {
            optimization: descent / (learning_rate * steps as f64),
            curvature: 0.5 * smoothness * learning_rate,
            tracking: Tracking {
                clipping: tail.residual(self.rows.min(self.cols), clip)?,
                noise,
                drift: momentum / (1.0 - momentum) * smoothness * learning_rate,
            },
            quality: self.quality,
        })
    }

    /// The bound behind Corollary B.6, O(T^{−1/6}): [`Horizon::second_moment`] in Theorem 3.4, with
    /// E‖G‖_F² ≤ G₂².
    pub fn second_moment_bound(
        &self,
        steps: u64,
        eta0: f64,
        c0: f64,
        g2: f64,
    ) -> Result<Stationarity, Refused> {
        self.bound(&Horizon::second_moment(steps, eta0, c0)?, GradientTail::SecondMoment(g2))
    }

    /// The bound behind Corollary B.7, O(T^{−1/4} √log T): [`Horizon::light_tail`] in Theorem 3.4,
    /// with E exp(‖G‖_F²/K²) ≤ e.
    pub fn light_tail_bound(&self, steps: u64, eta0: f64, k: f64) -> Result<Stationarity, Refused> {
        self.bound(&Horizon::light_tail(steps, eta0, k)?, GradientTail::Light(k))
    }
}

/// A number of steps, and the hyperparameters chosen for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Horizon {
    /// T
    pub steps: u64,
    /// η
    pub learning_rate: f64,
    /// β
    pub momentum: f64,
    /// C
    pub clip: f64,
}

impl Horizon {
    /// η_T = η₀ T^{−5/6}, β_T = 1 − T^{−2/3}, C_T = C₀ T^{1/6} (10).
    pub fn second_moment(steps: u64, eta0: f64, c0: f64) -> Result<Self, Refused> {
        let t = counted("the steps", steps)? as f64;
        let learning_rate = positive("the constant η₀", eta0)? * t.powf(-5.0 / 6.0);
        Ok(Self {
            steps,
            learning_rate,
            momentum: 1.0 - t.powf(-2.0 / 3.0),
            clip: positive("the constant C₀", c0)? * t.powf(1.0 / 6.0),
        })
    }

    /// η_T = η₀ T^{−3/4}, β_T = 1 − T^{−1/2}, C_T = K √(2 log T), for T ≥ 2 (13).
    pub fn light_tail(steps: u64, eta0: f64, k: f64) -> Result<Self, Refused> {
        let t = if steps >= 2 {
            steps as f64
        } else {
            return Err(refused("the steps", "at least 2", steps));
        };
        let learning_rate = positive("the constant η₀", eta0)? * t.powf(-0.75);
        Ok(Self {
            steps,
            learning_rate,
            momentum: 1.0 - t.powf(-0.5),
            clip: positive("the tail scale K", k)? * (2.0 * t.ln()).sqrt(),
        })
    }
}

/// The terms of Theorem 3.4. Its `Display` is a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stationarity {
    /// D₀/(ηT)
    pub optimization: f64,
    /// Lη/2
    pub curvature: f64,
    /// The terms of (7): how far the momentum is from the gradient.
    pub tracking: Tracking,
    /// ε_q and χ_q
    pub quality: Quality,
}

impl Stationarity {
    /// The bound: χ_q [optimization + curvature + (2 − ε_q)(clipping + noise + drift)].
    pub fn total(&self) -> f64 {
        self.terms().iter().map(|(_, _, value, weight)| weight * value).sum()
    }

    /// Name, formula, value and weight.
    fn terms(&self) -> [(&'static str, &'static str, f64, f64); 5] {
        let descent = self.quality.chi;
        let tracking = descent * (2.0 - self.quality.epsilon);
        [
            ("optimization", "D₀/(ηT)", self.optimization, descent),
            ("curvature", "Lη/2", self.curvature, descent),
            ("clipping", "𝔅_T(C)", self.tracking.clipping, tracking),
            ("noise", "√r v_C Γ_T(β)", self.tracking.noise, tracking),
            ("drift", "Lηβ/(1−β)", self.tracking.drift, tracking),
        ]
    }
}

impl fmt::Display for Stationarity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<14}{:<15}{:>12}{:>12}{:>12}", "term", "", "value", "weight", "product")?;
        for (name, formula, value, weight) in self.terms() {
            writeln!(
                f,
                "{name:<14}{formula:<15}{value:>12.4e}{weight:>12.4}{:>12.4e}",
                weight * value
            )?;
        }
        write!(
            f,
            "{:<14}ε = {:<11.4e}χ = {:<8.4}{:>24.4e}",
            "total",
            self.quality.epsilon,
            self.quality.chi,
            self.total()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::close;
    use super::super::{InitialError, Iteration};
    use super::*;

    fn problem() -> Problem {
        let quality =
            Iteration::new(2, 3).unwrap().quality(InitialError::from_delta(0.95).unwrap());
        Problem {
            rows: 6,
            cols: 4,
            descent: 2.0,
            smoothness: 3.0,
            lot: 64.0,
            noise_multiplier: 1.5,
            quality,
        }
    }

    const HORIZON: Horizon = Horizon { steps: 500, learning_rate: 0.01, momentum: 0.9, clip: 0.5 };

    #[test]
    fn the_theorem_term_by_term() {
        let bound = problem().bound(&HORIZON, GradientTail::SecondMoment(0.8)).unwrap();
        let v = 0.5 * (1.0 / 64.0 + 24.0 * 2.25 / 4096.0f64).sqrt();
        let gamma = (1..=500)
            .map(|t| (0.1 / 1.9 * (1.0 + 0.9f64.powi(t)) / (1.0 - 0.9f64.powi(t))).sqrt())
            .sum::<f64>()
            / 500.0;
        let epsilon = 1.0 - (1.0 - 0.95f64.powi(27)).sqrt();
        let expected = [2.0 / 5.0, 0.015, 2.0 * 0.64 / 0.5, 2.0 * v * gamma, 3.0 * 0.01 * 9.0];
        let got = [
            bound.optimization,
            bound.curvature,
            bound.tracking.clipping,
            bound.tracking.noise,
            bound.tracking.drift,
        ];
        for (got, expected) in got.into_iter().zip(expected) {
            assert!(close(got, expected, 1e-12), "{got} {expected}");
        }
        let [a, b, c, d, e] = expected;
        assert!(close(
            bound.total(),
            (a + b + (2.0 - epsilon) * (c + d + e)) / (1.0 - epsilon),
            1e-12
        ));
        let plain = Problem { quality: Quality { epsilon: 0.0, chi: 1.0 }, ..problem() };
        assert!(close(
            plain.bound(&HORIZON, GradientTail::SecondMoment(0.8)).unwrap().total(),
            a + b + 2.0 * (c + d + e),
            1e-12
        ));
        // The number of rows and columns enters by r and d alone.
        assert_eq!(
            Problem { rows: 4, cols: 6, ..problem() }
                .bound(&HORIZON, GradientTail::SecondMoment(0.8))
                .unwrap(),
            bound
        );
    }

    #[test]
    fn the_table() {
        let quality = Quality { epsilon: 0.5, chi: 2.0 };
        let bound = Stationarity {
            optimization: 1.0,
            curvature: 0.5,
            tracking: Tracking { clipping: 0.25, noise: 4.0, drift: 0.0 },
            quality,
        };
        assert_eq!(bound.total(), 15.75);
        let expected = "\
term                                value      weight     product
optimization  D₀/(ηT)            1.0000e0      2.0000    2.0000e0
curvature     Lη/2              5.0000e-1      2.0000    1.0000e0
clipping      𝔅_T(C)            2.5000e-1      3.0000   7.5000e-1
noise         √r v_C Γ_T(β)      4.0000e0      3.0000    1.2000e1
drift         Lηβ/(1−β)          0.0000e0      3.0000    0.0000e0
total         ε = 5.0000e-1  χ = 2.0000                  1.5750e1";
        assert_eq!(bound.to_string(), expected);
    }

    #[test]
    fn more_of_a_bad_thing_is_worse() {
        let total = |problem: Problem, horizon: Horizon, tail| {
            problem.bound(&horizon, tail).unwrap().total()
        };
        let tail = GradientTail::SecondMoment(0.8);
        let base = total(problem(), HORIZON, tail);
        let worse = [
            Problem { descent: 2.1, ..problem() },
            Problem { smoothness: 3.1, ..problem() },
            Problem { lot: 63.0, ..problem() },
            Problem { noise_multiplier: 1.6, ..problem() },
            Problem { rows: 7, ..problem() },
            Problem { cols: 5, ..problem() },
            Problem {
                quality: Iteration::new(2, 2)
                    .unwrap()
                    .quality(InitialError::from_delta(0.95).unwrap()),
                ..problem()
            },
            Problem {
                quality: Iteration::new(1, 3)
                    .unwrap()
                    .quality(InitialError::from_delta(0.95).unwrap()),
                ..problem()
            },
            Problem {
                quality: Iteration::new(2, 3)
                    .unwrap()
                    .quality(InitialError::from_delta(0.96).unwrap()),
                ..problem()
            },
        ];
        for problem in worse {
            assert!(total(problem, HORIZON, tail) > base, "{problem:?}");
        }
        assert!(total(problem(), Horizon { steps: 499, ..HORIZON }, tail) > base);
        assert!(total(problem(), HORIZON, GradientTail::SecondMoment(0.81)) > base);
        let terms = |horizon: Horizon| problem().bound(&horizon, GradientTail::Light(0.8)).unwrap();
        let (slow, fast) = (terms(Horizon { momentum: 0.95, ..HORIZON }), terms(HORIZON));
        assert!(
            slow.tracking.noise < fast.tracking.noise && slow.tracking.drift > fast.tracking.drift
        );
        let (wide, narrow) = (terms(Horizon { clip: 0.6, ..HORIZON }), terms(HORIZON));
        assert!(
            wide.tracking.noise > narrow.tracking.noise
                && wide.tracking.clipping < narrow.tracking.clipping
        );
        assert_eq!(terms(Horizon { momentum: 0.0, ..HORIZON }).tracking.drift, 0.0);
    }

    #[test]
    fn the_schedules() {
        let got = Horizon::second_moment(1_000_000, 2.0, 3.0).unwrap();
        assert_eq!(got.steps, 1_000_000);
        assert!(
            close(got.learning_rate, 2e-5, 1e-12)
                && close(1.0 - got.momentum, 1e-4, 1e-10)
                && close(got.clip, 30.0, 1e-12)
        );
        assert_eq!(
            Horizon::second_moment(1, 2.0, 3.0).unwrap(),
            Horizon { steps: 1, learning_rate: 2.0, momentum: 0.0, clip: 3.0 }
        );
        let got = Horizon::light_tail(10_000, 2.0, 3.0).unwrap();
        assert!(close(got.learning_rate, 2e-3, 1e-12) && close(1.0 - got.momentum, 1e-2, 1e-12));
        assert!(close(got.clip, 3.0 * (8.0 * 10f64.ln()).sqrt(), 1e-12));
    }

    #[test]
    fn the_rates() {
        let (problem, eta0, c0, g2, k) = (problem(), 0.3, 0.7, 0.8, 0.9);
        let root = (1.0 / 64.0 + 24.0 * 2.25 / 4096.0f64).sqrt();
        let (epsilon, chi) = (problem.quality.epsilon(), problem.quality.chi());
        // Where T^{1/6} times the bound goes: Γ_T T^{1/3} → 1/√2, and the curvature vanishes.
        let limit = chi
            * (2.0 / eta0
                + (2.0 - epsilon)
                    * (2.0 * g2 * g2 / c0 + 2.0 * c0 * root / 2f64.sqrt() + 3.0 * eta0));
        let scaled = |e: u32| {
            problem.second_moment_bound(10u64.pow(e), eta0, c0, g2).unwrap().total()
                * 10f64.powf(f64::from(e) / 6.0)
        };
        let away = |e| (scaled(e) / limit - 1.0).abs();
        assert!((0..=19).all(|e| scaled(e) < 2.0 * limit));
        assert!(
            (3..15).all(|e| away(e + 1) < away(e)),
            "{:?}",
            (3..=15).map(away).collect::<Vec<_>>()
        );
        // Later on 1 − β_T has fewer digits.
        assert!(
            away(15) < 1e-6 && (16..=19).all(|e| away(e) < 1e-4),
            "{:?}",
            (15..=19).map(away).collect::<Vec<_>>()
        );
        // T^{1/4} times the bound, split into the noise, which has the √log T, and the rest.
        let noise = chi * (2.0 - epsilon) * 2.0 * k * 2f64.sqrt() * root / 2f64.sqrt();
        let rest = chi * (2.0 / eta0 + (2.0 - epsilon) * 3.0 * eta0);
        for e in 1..=19 {
            let (t, bound) =
                (10f64.powi(e as i32), problem.light_tail_bound(10u64.pow(e), eta0, k).unwrap());
            let (scale, log) = (t.powf(0.25), t.ln().sqrt());
            assert!(bound.total() * scale / log < 2.0 * (noise + rest), "T = {t}");
            if e >= 16 {
                let weighted = chi * (2.0 - epsilon) * bound.tracking.noise;
                assert!(close(weighted * scale / log, noise, 1e-3), "T = {t}");
                assert!(close((bound.total() - weighted) * scale, rest, 1e-3), "T = {t}");
                assert!(bound.tracking.clipping * t < 1e-10);
            }
        }
    }
}
