package intent

// Labels returns the subjects of the built-in data set in model order: that of the MMLU-Pro classifier of vLLM's
// semantic-router, so that both models' outputs mean the same.
func Labels() []string {
	return []string{
		"biology", "business", "chemistry", "computer science", "economics",
		"engineering", "health", "history", "law", "math", "other",
		"philosophy", "physics", "psychology",
	}
}
