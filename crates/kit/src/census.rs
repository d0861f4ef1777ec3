//! A census: how full every bounded thing is, for those who test that bounds hold.
//!
//! Counting looks at everything once; it is not for a broker's daily life.

/// How full something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// What is counted. Of things that there are many of, the fullest.
    pub what: &'static str,
    /// How much there is.
    pub size: usize,
    /// How much there may be.
    pub bound: usize,
}

impl Count {
    /// Whether there is no more than there may be.
    pub fn fits(&self) -> bool {
        self.size <= self.bound
    }

    /// The one of several that is fullest, relative to its own bound; an empty one if there is none.
    pub fn fullest(what: &'static str, counts: impl Iterator<Item = (usize, usize)>) -> Count {
        // Cross-multiplied, so that no size is lost in a division.
        let fullness = |a: &(usize, usize), b: &(usize, usize)| {
            let (left, right) = (a.0 as u128 * b.1 as u128, b.0 as u128 * a.1 as u128);
            left.cmp(&right).then(a.0.cmp(&b.0))
        };
        let (size, bound) = counts.max_by(fullness).unwrap_or_default();
        Count { what, size, bound }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fullest_is_so_relative_to_its_own_bound() {
        let count = Count::fullest("x", [(5, 100), (2, 10), (1, 9)].into_iter());
        assert_eq!((count.size, count.bound, count.fits()), (2, 10, true));
        let count = Count::fullest("x", [(100, 100), (11, 10)].into_iter());
        assert_eq!((count.size, count.fits()), (11, false));
        assert!(Count::fullest("x", [].into_iter()).fits());
    }
}
