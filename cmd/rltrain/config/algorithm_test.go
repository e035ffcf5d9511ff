package config

// The algorithms that every program has, and a task as some have.
func init() {
	SetTasks([]string{"own"})
	SetAlgorithms([]Algorithm{
		{Name: "reinforce", Baseline: true, Scale: true, Reduction: true},
		{Name: "rloo", Ratio: true},
		{Name: "grpo", Scale: true, Reduction: true, Ratio: true},
		{Name: "ppo", Ratio: true, Values: true},
	})
}
