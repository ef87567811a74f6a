"""Studies: a question, its arms, what became of them, and a decision, in four files that a person can read and edit."""
