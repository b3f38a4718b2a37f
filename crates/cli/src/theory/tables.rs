//! The tables of `muffle theory`, and notes on vacuous bounds.

use super::Settings;
use super::figures::{FAILURE_PROBABILITY, Matrix, Output};
use crate::output::{Number, print, short, table};
use muffle::optim::newton_schulz::Polynomial;

/// Returns notes on bounds that are vacuous or do not apply, one sentence each.
pub(super) fn notes(settings: &Settings, matrices: &[Matrix]) -> Vec<String> {
    let shapes_where = |condition: &dyn Fn(&Matrix) -> bool| {
        let selected = matrices.iter().filter(|matrix| condition(matrix));
        selected
            .map(|matrix| format!("{}×{}", matrix.rows, matrix.cols))
            .collect::<Vec<_>>()
            .join(", ")
    };
    let mut notes = Vec::new();
    let mut note = |shapes: String, text: &str| {
        if !shapes.is_empty() {
            notes.push(format!("{shapes}: {text}"));
        }
    };
    let exceeds_one = |figure: &Option<Number>| figure.is_some_and(|figure| !(figure.0 <= 1.0));
    note(
        shapes_where(&|matrix| matrix.tracking.noise_over_signal >= 1.0),
        "equation (7) is vacuous: its noise alone exceeds the largest clipped mean",
    );
    note(
        shapes_where(&|matrix| exceeds_one(&matrix.tracking.least_gradient_worst)),
        "Lemma B.4 and Theorem 3.4 are vacuous with the worst direction's error (Lemma 3.3): no \
         clipped gradient is large enough",
    );
    note(
        shapes_where(&|matrix| exceeds_one(&matrix.tracking.least_gradient_mean)),
        "they are vacuous with the mean error, too",
    );
    note(
        shapes_where(&|matrix| matrix.bias.iter().any(|bias| !bias.usable)),
        "rows marked ✗: the noise is too large for the expansion of §4 and Theorem 4.1; their \
         figures are not estimates of the bias (--samples simulates it)",
    );
    note(
        shapes_where(&|matrix| {
            matrix.bias.iter().any(|bias| bias.probe_error_bound.is_some_and(|bound| bound >= 1.0))
        }),
        "the bound of C.6 on the error of the probes is vacuous: it is as large as the direction",
    );
    if settings.iteration.polynomial == Polynomial::Quintic {
        notes.push("Lemma 3.3 is about the polynomials p_κ, not about quintic".into());
    }
    notes
}

impl Output {
    /// Prints all tables and notes.
    pub(super) fn print(&self) {
        let degree = match self.newton_schulz_degree {
            Polynomial::Newton { degree } => format!("of degree {degree}"),
            Polynomial::Quintic => "of the quintic polynomial".into(),
        };
        print(&format!(
            "σ = {} for each matrix, C = {}, lots of {}, {} steps, momentum {}, {} Newton–Schulz \
             steps {degree}\nNoise of a released gradient: standard deviation {} in each element. \
             No records are read, nothing is charged.\n",
            short(self.noise_multiplier),
            short(self.clip),
            self.lot_size,
            self.steps,
            self.momentum,
            self.newton_schulz_steps,
            short(self.gradient_noise_std),
        ));
        let mut lines = Vec::new();
        for matrix in &self.matrices {
            for noise in &matrix.noise {
                lines.push(vec![
                    matrix.name(),
                    noise.step.to_string(),
                    short(noise.std),
                    short(noise.spectral),
                    short(noise.frobenius),
                    short(noise.frobenius_over_clip),
                ]);
            }
        }
        print("Noise in the momentum (Lemma C.1); the signal has a norm of at most C:");
        print(&table(&["matrix", "step", "std", "spectral", "Frobenius", "Frobenius ÷ C"], &lines));
        let optional = |figure: Option<f64>| figure.map_or("–".into(), short);
        let number = |figure: &Option<Number>| optional(figure.map(|figure| figure.0));
        let line = |matrix: &Matrix| {
            let figures = &matrix.tracking;
            vec![
                matrix.name(),
                short(figures.gamma),
                short(figures.noise_over_signal),
                number(&figures.worst_chi),
                number(&figures.least_gradient_worst),
                optional(figures.noise_mean_error),
                number(&figures.least_gradient_mean),
            ]
        };
        print(&format!(
            "\nTracking and descent, gradients in units of √r·C, the largest clipped mean. \
             Descent is promised from\n‖g‖_* on (Lemma B.4), by the worst direction's χ_q \
             (Lemma 3.3, with probability {}) or by the mean error of noise:",
            1.0 - FAILURE_PROBABILITY
        ));
        let header =
            ["matrix", "Γ_T (6)", "noise (7)", "χ_q", "‖g‖_* by χ_q", "mean ε", "‖g‖_* by mean ε"];
        print(&table(&header, &self.matrices.iter().map(line).collect::<Vec<_>>()));
        self.print_bias();
        for matrix in &self.matrices {
            if let Some(terms) = &matrix.stationarity {
                print(&format!(
                    "\nTheorem 3.4 for {}, with the mean error of noise:\n{}",
                    matrix.name(),
                    terms.text
                ));
            }
        }
        if !self.notes.is_empty() {
            print(&format!("\n{}", self.notes.join("\n")));
        }
    }

    fn print_bias(&self) {
        let has_simulation =
            self.matrices.iter().any(|m| m.bias.iter().any(|b| b.simulated.is_some()));
        let mut header =
            vec!["matrix", "rank", "output", "bias", "next term", "corrected", "C.6 bound", ""];
        if has_simulation {
            header.extend(["simulated bias", "±", "corrected", "±", "probe error"]);
        }
        let mut lines = Vec::new();
        for matrix in &self.matrices {
            for bias in &matrix.bias {
                let mut line = vec![
                    matrix.name(),
                    bias.rank.to_string(),
                    short(bias.output),
                    short(bias.leading),
                    short(bias.next),
                    short(bias.corrected),
                    bias.probe_error_bound.map_or("–".into(), short),
                    if bias.usable { "✓" } else { "✗" }.into(),
                ];
                if let Some(simulated_bias) = &bias.simulated {
                    line.extend([
                        short(simulated_bias.bias),
                        short(simulated_bias.bias_error.0),
                        short(simulated_bias.corrected),
                        short(simulated_bias.corrected_error.0),
                        short(simulated_bias.probe_error),
                    ]);
                }
                lines.push(line);
            }
        }
        print(&format!(
            "\nBias of the direction after the last step, ÷ its norm, if the momentum without \
             noise has norm {} and\nequal singular values: leading and next term (§4), what \
             correction leaves (Theorem 4.1), error of its probes (C.6):",
            short(self.signal_norm)
        ));
        print(&table(&header, &lines));
    }
}

impl Matrix {
    fn name(&self) -> String {
        let count = if self.count > 1 { format!(" ({})", self.count) } else { String::new() };
        format!("{}×{}{count}", self.rows, self.cols)
    }
}
