//! The records, each in a place of its own.

use model::Example;

/// Everybody's records. They go in and do not come out.
///
/// Every record has a *place*. How many places there are is public; whether a place is taken is not. A neighbouring data set has one place vacated, one more taken,
/// or another record in it: nobody else moves.
pub struct Records {
    places: Vec<Option<Example>>,
}

impl Records {
    /// One place for each record.
    pub fn new(examples: Vec<Example>) -> Self {
        Self { places: examples.into_iter().map(Some).collect() }
    }

    /// Some places may be vacant: a neighbouring data set, or a canary that was not put in.
    pub fn with_vacancies(places: Vec<Option<Example>>) -> Self {
        Self { places }
    }

    /// How many places there are. Public.
    pub fn places(&self) -> usize {
        self.places.len()
    }

    /// The record in a place.
    pub(crate) fn at(&self, place: usize) -> Option<&Example> {
        self.places[place].as_ref()
    }

    /// The records with their places.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &Example)> {
        self.places.iter().enumerate().filter_map(|(place, example)| Some((place, example.as_ref()?)))
    }
}

impl std::fmt::Debug for Records {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Records({} places)", self.places())
    }
}
