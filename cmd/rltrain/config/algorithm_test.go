package config

// The algorithms that every program has.
func init() {
	SetAlgorithms([]Algorithm{
		{Name: "reinforce", Baseline: true, Scale: true, Reduction: true},
		{Name: "rloo", Ratio: true},
		{Name: "grpo", Scale: true, Reduction: true, Ratio: true},
		{Name: "ppo", Ratio: true, Values: true},
	})
}
