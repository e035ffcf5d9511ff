package intent

// Labels returns the subjects of the built-in data set in the order in which
// models number them: that of the MMLU-Pro classifier of vLLM's
// semantic-router, so that the outputs of both mean the same.
func Labels() []string {
	return []string{
		"biology", "business", "chemistry", "computer science", "economics",
		"engineering", "health", "history", "law", "math", "other",
		"philosophy", "physics", "psychology",
	}
}
