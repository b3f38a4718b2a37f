//! Metrics of classifiers and regressors: accuracy, F1, AUROC, confusion matrix, RMSE, MAE, R².
//!
//! They equal those of scikit-learn (`peers/golden_evaluation.py`).

use serde::{Deserialize, Serialize};

/// The maximum number of probabilities that are held for the AUROC; with more there is none.
const MAX_PROBABILITIES: usize = 1 << 26;

/// The maximum number of classes of a confusion matrix.
const MAX_MATRIX: usize = 256;

/// Computes the area under the ROC curve of (score, whether the row is positive).
///
/// That is the share of pairs of a positive and a negative row in which the positive one has the
/// larger score; pairs with equal scores count half. The pairs are counted in integers. `None`
/// without a positive or a negative row, or if a score is NaN.
///
/// ```
/// let auroc = muffle::evaluate::metrics::auroc;
/// assert_eq!(auroc(vec![(0.2, false), (0.7, false), (0.7, true)]), Some(0.75));
/// assert_eq!(auroc(vec![(0.2, true)]), None);
/// ```
pub fn auroc(mut scores: Vec<(f64, bool)>) -> Option<f64> {
    if scores.iter().any(|(score, _)| score.is_nan()) {
        return None;
    }
    scores.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let (mut negatives, mut positives, mut half_pairs) = (0u128, 0u128, 0u128);
    // Not `total_cmp`: −0 and 0 are equal scores.
    for equal in scores.chunk_by(|a, b| a.0 == b.0) {
        let here = equal.iter().filter(|(_, positive)| *positive).count() as u128;
        let negatives_here = equal.len() as u128 - here;
        half_pairs += here * (2 * negatives + negatives_here);
        positives += here;
        negatives += negatives_here;
    }
    let all = 2 * positives * negatives;
    (all > 0).then(|| half_pairs as f64 / all as f64)
}

/// F1 from counts; 0 if nothing is or should be predicted.
fn f1(true_positives: u64, predicted: u64, actual: u64) -> f64 {
    match predicted + actual {
        0 => 0.0,
        sum => 2.0 * true_positives as f64 / sum as f64,
    }
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (count, sum) = values.fold((0u64, 0.0), |(count, sum), value| (count + 1, sum + value));
    (count > 0).then(|| sum / count as f64)
}

/// Numbers of rows by class and predicted class.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfusionMatrix {
    /// The names of the classes, for rows and columns.
    pub labels: Vec<String>,
    /// `counts[class][predicted class]`.
    pub counts: Vec<Vec<u64>>,
}

/// Collects the predictions of a classifier.
///
/// ```
/// use muffle::evaluate::metrics::ClassTally;
///
/// let mut tally = ClassTally::new(2);
/// tally.add(1, &[0.4, 0.6]);
/// tally.add(0, &[0.3, 0.7]);
/// assert_eq!((tally.accuracy(), tally.auroc()), (Some(0.5), Some(0.0)));
/// ```
#[derive(Clone, Debug)]
pub struct ClassTally {
    classes: usize,
    rows: u64,
    correct: u64,
    /// By class: correct predictions, predictions, rows.
    counts: Vec<[u64; 3]>,
    /// By class and predicted class; empty if there are too many classes.
    matrix: Vec<Vec<u64>>,
    probabilities: ProbabilityTable,
    targets: Vec<u32>,
}

impl ClassTally {
    /// Creates an empty tally of a classifier with so many classes.
    pub fn new(classes: usize) -> Self {
        let size = if classes <= MAX_MATRIX { classes } else { 0 };
        Self {
            classes,
            rows: 0,
            correct: 0,
            counts: vec![[0; 3]; classes],
            matrix: vec![vec![0; size]; size],
            probabilities: ProbabilityTable::new(classes),
            targets: Vec::new(),
        }
    }

    /// Adds a row of class `target`; of equal probabilities the first is the prediction.
    ///
    /// # Panics
    /// If the target is not a class, or there is not one probability for each class.
    pub fn add(&mut self, target: u32, probabilities: &[f64]) {
        assert_eq!(probabilities.len(), self.classes, "a probability for each class");
        let (target, predicted) = (target as usize, first_largest(probabilities));
        let is_correct = u64::from(predicted == target);
        self.rows += 1;
        self.correct += is_correct;
        self.counts[target][0] += is_correct;
        self.counts[predicted][1] += 1;
        self.counts[target][2] += 1;
        if let Some(count) = self.matrix.get_mut(target).and_then(|row| row.get_mut(predicted)) {
            *count += 1;
        }
        if self.probabilities.add(probabilities) {
            self.targets.push(target as u32);
        }
    }

    /// The share of rows whose class is predicted.
    pub fn accuracy(&self) -> Option<f64> {
        (self.rows > 0).then(|| self.correct as f64 / self.rows as f64)
    }

    /// The mean F1 of the classes that occur as class or prediction of a row.
    pub fn macro_f1(&self) -> Option<f64> {
        let occurring = self.counts.iter().filter(|[_, predicted, rows]| predicted + rows > 0);
        mean(occurring.map(|&[correct, predicted, rows]| f1(correct, predicted, rows)))
    }

    /// The AUROC of the second of two classes, or the mean over classes, each against the rest.
    ///
    /// Classes of no row or of all rows are left out. `None` if there are too many probabilities
    /// to hold.
    pub fn auroc(&self) -> Option<f64> {
        let of_class = |class: usize| {
            auroc(self.probabilities.column(class, |row| self.targets[row] as usize == class)?)
        };
        match self.classes {
            2 => of_class(1),
            classes => mean((0..classes).filter_map(of_class)),
        }
    }

    /// The confusion matrix with the names of the classes; `None` if there are too many classes.
    pub fn confusion_matrix(&self, labels: &[String]) -> Option<ConfusionMatrix> {
        let fits = !self.matrix.is_empty() && labels.len() == self.classes;
        fits.then(|| ConfusionMatrix { labels: labels.to_vec(), counts: self.matrix.clone() })
    }
}

/// Collects the predictions of a multi-label classifier: a label is predicted above 0.5.
#[derive(Clone, Debug)]
pub struct LabelTally {
    /// By label: correct predictions, predictions, rows.
    counts: Vec<[u64; 3]>,
    probabilities: ProbabilityTable,
    /// Whether each row has each label, row-major.
    targets: Vec<bool>,
}

impl LabelTally {
    /// The probability above which a label is predicted.
    pub const THRESHOLD: f64 = 0.5;

    /// Creates an empty tally of a classifier with so many labels.
    pub fn new(labels: usize) -> Self {
        let probabilities = ProbabilityTable::new(labels);
        Self { counts: vec![[0; 3]; labels], probabilities, targets: Vec::new() }
    }

    /// Adds a row with these labels.
    ///
    /// # Panics
    /// If there is not one probability for each label.
    pub fn add(&mut self, labels: &[u32], probabilities: &[f64]) {
        assert_eq!(probabilities.len(), self.counts.len(), "a probability for each label");
        let has_label = |label: usize| labels.contains(&(label as u32));
        for (label, (counts, p)) in self.counts.iter_mut().zip(probabilities).enumerate() {
            let (predicted, actual) = (*p > Self::THRESHOLD, has_label(label));
            counts[0] += u64::from(predicted && actual);
            counts[1] += u64::from(predicted);
            counts[2] += u64::from(actual);
        }
        if self.probabilities.add(probabilities) {
            self.targets.extend((0..probabilities.len()).map(has_label));
        }
    }

    /// F1 of the labels of all rows together.
    pub fn micro_f1(&self) -> f64 {
        let total = |index: usize| self.counts.iter().map(|counts| counts[index]).sum();
        f1(total(0), total(1), total(2))
    }

    /// The mean F1 of the labels.
    pub fn macro_f1(&self) -> Option<f64> {
        let counts = self.counts.iter();
        mean(counts.map(|&[correct, predicted, rows]| f1(correct, predicted, rows)))
    }

    /// The mean AUROC of the labels that some rows have and others have not.
    pub fn auroc(&self) -> Option<f64> {
        let labels = self.counts.len();
        let of_label = |label: usize| {
            auroc(self.probabilities.column(label, |row| self.targets[row * labels + label])?)
        };
        mean((0..labels).filter_map(of_label))
    }
}

/// Collects the predictions of a regression model.
#[derive(Clone, Copy, Debug, Default)]
pub struct ValueTally {
    rows: u64,
    squares: f64,
    absolutes: f64,
    /// Mean of the targets, and the sum of their squared distances from it.
    mean: f64,
    spread: f64,
}

impl ValueTally {
    /// Adds a row.
    pub fn add(&mut self, target: f64, predicted: f64) {
        let error = predicted - target;
        self.rows += 1;
        self.squares += error * error;
        self.absolutes += error.abs();
        // Welford's update, which loses no digits if all targets are far from zero.
        let distance = target - self.mean;
        self.mean += distance / self.rows as f64;
        self.spread += distance * (target - self.mean);
    }

    /// The root of the mean squared error.
    pub fn rmse(&self) -> Option<f64> {
        (self.rows > 0).then(|| (self.squares / self.rows as f64).sqrt())
    }

    /// The mean absolute error.
    pub fn mae(&self) -> Option<f64> {
        (self.rows > 0).then(|| self.absolutes / self.rows as f64)
    }

    /// R²: one minus the share of the targets' variance that is not explained.
    ///
    /// `None` if all targets are equal.
    pub fn r2(&self) -> Option<f64> {
        (self.spread > 0.0).then(|| 1.0 - self.squares / self.spread)
    }
}

/// The index of the largest of some numbers; of equal ones the first.
pub(crate) fn first_largest(numbers: &[f64]) -> usize {
    let larger = |best: usize, (index, x): (usize, &f64)| {
        if *x > numbers[best] { index } else { best }
    };
    numbers.iter().enumerate().fold(0, larger)
}

/// Probabilities of all rows, as far as there is room for them.
#[derive(Clone, Debug)]
struct ProbabilityTable {
    columns: usize,
    values: Vec<f64>,
    is_full: bool,
}

impl ProbabilityTable {
    fn new(columns: usize) -> Self {
        Self { columns, values: Vec::new(), is_full: false }
    }

    /// Adds a row; `false` if there was no room for it.
    fn add(&mut self, row: &[f64]) -> bool {
        self.is_full |= self.values.len() + row.len() > MAX_PROBABILITIES;
        if self.is_full {
            self.values = Vec::new();
        } else {
            self.values.extend(row);
        }
        !self.is_full
    }

    /// The scores of a column with their marks; `None` if rows are missing.
    fn column(
        &self,
        column: usize,
        is_positive: impl Fn(usize) -> bool,
    ) -> Option<Vec<(f64, bool)>> {
        let score = |(row, values): (usize, &[f64])| (values[column], is_positive(row));
        let rows = self.values.chunks_exact(self.columns).enumerate();
        (!self.is_full).then(|| rows.map(score).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_count_half_a_pair() {
        assert_eq!(auroc(vec![(0.5, true), (0.5, false)]), Some(0.5));
        assert_eq!(auroc(vec![(0.0, true), (-0.0, false)]), Some(0.5));
        assert_eq!(auroc(vec![(0.9, true), (0.1, false)]), Some(1.0));
        assert_eq!(auroc(vec![(0.1, true), (0.9, false), (0.1, false)]), Some(0.25));
        assert_eq!(auroc(vec![(f64::NAN, true), (0.1, false)]), None);
        assert_eq!(auroc(vec![(0.3, true), (0.1, true)]), None);
    }

    #[test]
    fn tables_that_do_not_fit_are_dropped() {
        let mut table = ProbabilityTable::new(2);
        assert!(table.add(&[0.5, 0.5]));
        table.is_full = true;
        assert!(!table.add(&[0.5, 0.5]));
        assert!(table.values.is_empty() && table.column(0, |_| true).is_none());
    }

    #[test]
    fn large_matrices_are_left_out() {
        let names = |count: usize| (0..count).map(|i| i.to_string()).collect::<Vec<_>>();
        let tally = |classes: usize| {
            let mut tally = ClassTally::new(classes);
            tally.add(1, &vec![1.0 / classes as f64; classes]);
            tally
        };
        assert_eq!(tally(2).confusion_matrix(&names(2)).unwrap().counts, [[0, 0], [1, 0]]);
        assert_eq!(tally(2).confusion_matrix(&names(3)), None);
        let large = tally(MAX_MATRIX + 1);
        assert_eq!(large.confusion_matrix(&names(MAX_MATRIX + 1)), None);
        assert_eq!(large.macro_f1(), Some(0.0));
    }

    #[test]
    fn metrics_of_nothing_are_none() {
        let tally = ClassTally::new(3);
        assert_eq!((tally.accuracy(), tally.macro_f1(), tally.auroc()), (None, None, None));
        let values = ValueTally::default();
        assert_eq!((values.rmse(), values.mae(), values.r2()), (None, None, None));
        let mut constant = ValueTally::default();
        (0..3).for_each(|_| constant.add(2.0, 1.0));
        assert_eq!((constant.rmse(), constant.r2()), (Some(1.0), None));
    }
}
