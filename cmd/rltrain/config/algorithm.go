package config

import (
	"slices"
	"strings"
)

// Algorithm is a reinforcement learning algorithm of token policies, as options see it.
type Algorithm struct {
	Name      string
	Baseline  bool // reads baseline
	Scale     bool // reads advantage_scale
	Reduction bool // reads reduction
	Ratio     bool // reads clip_low, clip_high, target_kl, update_epochs and minibatches
	Values    bool // has a value head, and reads what it needs
}

// algorithms are those that the program has, by name.
var algorithms []Algorithm

// SetAlgorithms says which algorithms the program has, before anything is loaded.
func SetAlgorithms(all []Algorithm) {
	algorithms = slices.SortedFunc(slices.Values(all), func(a, b Algorithm) int { return strings.Compare(a.Name, b.Name) })
	key := find("algorithm")
	key.allowed = nil
	for _, a := range algorithms {
		key.allowed = append(key.allowed, a.Name)
	}
}

// Applies tells whether a setting means anything in c.
func (c *Config) Applies(name string) bool { return find(name).applies(c) }
