//! Measurements of Tenure against its floors
