//! Models that a program provides, and not this one: `model.source = "external:…"`.

use optim::Origin;

/// How the parameters of a model that a program provides came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExternalModel {
    /// All parameters are new and trained.
    New,
    /// The parameters were trained before, and all are trained further.
    Pretrained,
    /// The parameters were trained before, and only some are trained further.
    Partial,
    /// Low-rank adapters of a model that was trained before.
    Adapters,
}

impl ExternalModel {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::New, Self::Pretrained, Self::Partial, Self::Adapters];

    /// The value of `model.source`.
    pub fn source(self) -> &'static str {
        match self {
            Self::New => "external:new",
            Self::Pretrained => "external:pretrained",
            Self::Partial => "external:partial",
            Self::Adapters => "external:adapters",
        }
    }

    /// Finds the kind with this value of `model.source`.
    pub fn of(source: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.source() == source)
    }

    /// The origin of the trained parameters, which default learning rates depend on.
    pub(crate) fn origin(self) -> Origin {
        match self {
            Self::New => Origin::New,
            Self::Pretrained | Self::Partial => Origin::Pretrained,
            Self::Adapters => Origin::Adapters,
        }
    }

    /// Whether some weights are not trained.
    pub(crate) fn has_frozen_weights(self) -> bool {
        matches!(self, Self::Partial | Self::Adapters)
    }
}
