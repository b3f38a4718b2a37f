//! Texts that are too long: chunks are clipped as one record, and warnings about dropped rows.

#![allow(clippy::unwrap_used)]

#[path = "support/small_run.rs"]
mod small_run;

use data::{Content, Prepared, Record};
use engine::{CheckedQuery, Engine, Example, Observed, SumPrecision, Weights, weighted_sum};
use muffle::LoadedModel;
use muffle::load::model::DataProperties;
use muffle::run::train;
use protocol::{Blocks, Geometry, Params};
use small_run::Stopping;

/// The norm of each example, and the sum of all gradients times `weight`, tensor by tensor.
fn weighted(
    engine: &mut impl Engine,
    params: &Params,
    examples: &[&Example],
    weight: f64,
) -> (Vec<f64>, Vec<f64>) {
    let (geometry, blocks) = (Geometry::Identity, Blocks::flat(params.len()));
    let query = CheckedQuery::new(params, &geometry, &blocks, &engine.trainable()).unwrap();
    let weigh = |observed: &Observed| {
        let mut weights = Weights::zeros(observed.examples(), 1);
        (0..observed.examples()).for_each(|example| weights.set(example, 0, weight));
        weights
    };
    let (observed, sum) =
        weighted_sum(engine, params, examples, &query, &SumPrecision::Float, weigh).unwrap();
    let values = sum.iter().zip(params.iter());
    let values = values.flat_map(|(sum, like)| (0..like.len()).map(|i| sum.value(i)));
    ((0..examples.len()).map(|example| observed.norm(example, 0)).collect(), values.collect())
}

/// The gradient of a long text is the mean of those of its chunks, or their sum; it has one norm.
#[test]
fn chunks_are_clipped_as_one_record() {
    for (combine, share) in [("mean", 1.0 / 4.0), ("sum", 1.0)] {
        let place = tempfile::tempdir().unwrap();
        let config = small_run::config(
            place.path(),
            &format!("data.max_length=12\ndata.max_chunks=4\ndata.combine={combine}"),
        );
        let mut model = LoadedModel::open(&config, DataProperties::default(), &mut |_| ()).unwrap();
        let content = Content::Text {
            source: None,
            target: "Ines is a welder on Friday and bakes bread on Monday. ".repeat(9),
            references: Vec::new(),
        };
        let record = Record { content, group: None, line: 1 };
        let prepared = model.preparation(&[], 12).example(&record).unwrap();
        let Prepared::Shortened(example) = prepared else { panic!("chunks") };
        let chunks: Vec<Example> = example.parts().iter().cloned().map(Example::from).collect();
        let chunks: Vec<&Example> = chunks.iter().collect();
        assert_eq!(chunks.len(), 4);
        let params = model.params.clone();
        let (_, expected) = weighted(&mut model.network, &params, &chunks, share);
        let norm = expected.iter().map(|x| x * x).sum::<f64>().sqrt();
        // Clipped once, to a tenth of its norm.
        let (norms, sum) = weighted(&mut model.network, &params, &[&example], 0.1);
        assert!((norms[0] - norm).abs() < 1e-4 * norm, "{combine}: {} {norm}", norms[0]);
        let apart = sum.iter().zip(&expected).map(|(sum, x)| (sum - 0.1 * x).powi(2)).sum::<f64>();
        assert!(apart.sqrt() < 1e-4 * norm, "{combine}: {}", apart.sqrt() / norm);
    }
}

/// Warnings of a run of one step, with these changes.
fn warnings(changes: &str) -> Vec<String> {
    let place = tempfile::tempdir().unwrap();
    let config = small_run::config(
        place.path(),
        &format!("training.steps=1\nevaluation.samples=0\n{changes}"),
    );
    let mut observer = Stopping::default();
    train(&config, &place.path().join("run"), &mut observer).unwrap();
    observer.messages.retain(|message| message.starts_with("warning"));
    observer.messages
}

/// The share of dropped rows is shown only where it is public.
#[test]
fn dropped_rows_are_announced() {
    let drop = "data.too_long=drop\ndata.max_length=90\n";
    let kept = warnings("data.max_length=90\ndata.evaluation_data=private");
    assert_eq!(kept, Vec::<String>::new());
    let private = warnings(&format!("{drop}data.evaluation_data=private"));
    assert_eq!(private.len(), 1, "{private:?}");
    assert!(private[0].contains("rows with 90 tokens or more are not used"), "{private:?}");
    assert!(private[0].contains("number is private") && !private[0].contains('%'), "{private:?}");
    let public = warnings(&format!("{drop}data.dropped_rows=public"));
    let keys = ["data.validation: ", "data.train: ", "data.validation: "];
    assert_eq!(public.len(), 3, "{public:?}");
    for (message, key) in public.iter().zip(keys) {
        assert!(message.contains(key) && message.contains("% of the rows"), "{message}");
    }
}
