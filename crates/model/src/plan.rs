//! What a graph's passes must keep and compute, given which parameters are trained: worked out
//! once.

use crate::graph::{Graph, Param, Value};
use crate::rule::Use;

/// The consequences of a choice of trainable parameters.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The trainable parameters, in order.
    pub(crate) trained: Vec<Param>,
    /// The place of each parameter among the trained ones.
    pub(crate) place: Vec<Option<usize>>,
    /// Values through which a gradient flows: those above a trained parameter.
    pub(crate) flows: Vec<bool>,
    /// Values that a backward pass reads.
    pub(crate) saved: Vec<bool>,
    /// Values, and gradients of values, of which the norms and sums of parameters are made.
    pub(crate) kept_value: Vec<bool>,
    pub(crate) kept_gradient: Vec<bool>,
    /// The layer that makes each value.
    pub(crate) maker: Vec<usize>,
    /// The last layer that reads each value.
    pub(crate) last_reader: Vec<usize>,
    /// How each trained parameter enters, by place.
    pub(crate) uses: Vec<Vec<Use>>,
    /// The lowest layer in which each trained parameter enters, by place.
    pub(crate) first_use: Vec<usize>,
    /// The lowest layer that takes part in the backward pass.
    pub(crate) lowest: usize,
}

impl Plan {
    pub(crate) fn new(graph: &Graph, trainable: &[bool]) -> Self {
        let trained: Vec<Param> =
            (0..graph.specs.len()).filter(|&i| trainable[i]).map(Param).collect();
        let mut place = vec![None; graph.specs.len()];
        trained.iter().enumerate().for_each(|(k, param)| place[param.0] = Some(k));
        let count = graph.forms.len();
        let mut plan = Self {
            uses: vec![Vec::new(); trained.len()],
            first_use: vec![graph.layers.len(); trained.len()],
            trained,
            place,
            flows: vec![false; count],
            saved: vec![false; count],
            kept_value: vec![false; count],
            kept_gradient: vec![false; count],
            maker: vec![0; count],
            last_reader: vec![0; count],
            lowest: graph.layers.len(),
        };
        for (index, layer) in graph.layers.iter().enumerate() {
            let flows = layer.inputs().iter().any(|v| plan.flows[v.0])
                || layer.params().iter().any(|p| trainable[p.0]);
            for value in layer.outputs() {
                plan.flows[value.0] = flows;
                plan.last_reader[value.0] = index;
                plan.maker[value.0] = index;
            }
            layer.inputs().iter().for_each(|value| plan.last_reader[value.0] = index);
            if flows {
                plan.lowest = plan.lowest.min(index);
            }
        }
        plan.last_reader[graph.logits.0] = graph.layers.len();
        for (index, layer) in graph.layers.iter().enumerate() {
            if layer.outputs().iter().any(|v| plan.flows[v.0]) {
                for value in layer.saves(&plan) {
                    plan.saved[value.0] = true;
                }
            }
            for (param, entry) in layer.uses() {
                if let Some(k) = plan.place[param.0] {
                    let (value, gradient) = entry.reads();
                    value
                        .into_iter()
                        .for_each(|v| (plan.saved[v.0], plan.kept_value[v.0]) = (true, true));
                    gradient.into_iter().for_each(|v| plan.kept_gradient[v.0] = true);
                    plan.uses[k].push(entry);
                    plan.first_use[k] = plan.first_use[k].min(index);
                }
            }
        }
        plan
    }

    /// A trained parameter from which nothing reaches the logits: it would be charged for and never
    /// move.
    pub(crate) fn stranded(&self, graph: &Graph) -> Option<Param> {
        let mut reaches = vec![false; graph.forms.len()];
        reaches[graph.logits.0] = true;
        let mut alive = vec![false; graph.specs.len()];
        for layer in graph.layers.iter().rev() {
            if layer.outputs().iter().any(|value| reaches[value.0]) {
                layer
                    .inputs()
                    .iter()
                    .chain(&layer.outputs())
                    .for_each(|value| reaches[value.0] = true);
                layer.uses().iter().for_each(|(param, _)| alive[param.0] = true);
            }
        }
        self.trained.iter().copied().find(|param| !alive[param.0])
    }

    pub(crate) fn trains(&self, param: Param) -> bool {
        self.place[param.0].is_some()
    }

    pub(crate) fn flows(&self, value: Value) -> bool {
        self.flows[value.0]
    }
}
