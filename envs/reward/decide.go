package reward

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rltrain/rltrain/internal/smallfile"
)

func init() {
	Register(Definition{
		Name: "brier", Help: "negative Brier score of the probabilities, -2 to 0",
		Labels: func(Setup) (LabelReward, error) {
			return LabelReward{ReadsProbs: true, Expected: func(truth int, probs, grad []float64) float64 {
				sum := 0.0
				for k, p := range probs {
					if k == truth {
						p--
					}
					sum += p * p
					grad[k] = -2 * p
				}
				return -sum
			}}, nil
		},
	})
	Register(Definition{
		Name: "ranked", Help: "1 minus the ranked probability score of ordered labels, 0 to 1",
		Labels: func(Setup) (LabelReward, error) {
			return LabelReward{ReadsProbs: true, Expected: expectedRanked}, nil
		},
	})
	Register(Definition{Name: "cost", Argument: "FILE", Help: `negative cost of the label, from a JSON object {"TRUTH": {"LABEL": COST}}; "*" is any truth; otherwise 0 if correct, else 1`, Labels: labelCost})
}

// expectedRanked is 1 − Σ_j (F_j − 1[j ≥ truth])²/(C−1), where F_j = Σ_{k≤j} π_k (Epstein 1969): a proper scoring rule that
// counts how far the labels are apart.
func expectedRanked(truth int, probs, grad []float64) float64 {
	steps := len(probs) - 1
	if steps == 0 {
		return 1
	}
	sum, below := 0.0, 0.0
	for j := range steps {
		below += probs[j]
		d := below
		if j >= truth {
			d--
		}
		sum += d * d
		for k := range j + 1 {
			grad[k] -= 2 * d / float64(steps)
		}
	}
	return 1 - sum/float64(steps)
}

// anyTruth is the row of a cost matrix for truths without one of their own, or for entries that their row lacks.
const anyTruth = "*"

// CostMatrix is what each answer costs, by truth and answer.
type CostMatrix map[string]map[string]float64

// ReadCosts reads a cost matrix.
func ReadCosts(path string) (CostMatrix, error) {
	if strings.TrimSpace(path) == "" {
		return nil, errors.New("cost needs a file")
	}
	data, err := smallfile.Read(path)
	if err != nil {
		return nil, err
	}
	var m CostMatrix
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(m) == 0 {
		return nil, fmt.Errorf(`%s: no costs; write {"TRUTH": {"ANSWER": COST}}`, path)
	}
	return m, nil
}

// Of is the cost of an answer.
func (m CostMatrix) Of(truth, answer string) float64 {
	for _, row := range []string{truth, anyTruth} {
		if cost, ok := m[row][answer]; ok {
			return cost
		}
	}
	if truth == answer {
		return 0
	}
	return 1
}

// Names lists the options that the matrix mentions.
func (m CostMatrix) Names() []string {
	names := map[string]bool{}
	for truth, row := range m {
		names[truth] = true
		for answer := range row {
			names[answer] = true
		}
	}
	delete(names, anyTruth)
	return slices.Sorted(maps.Keys(names))
}

// Costs are the matrices of a list of rewards, by NAME:ARGUMENT.
func Costs(spec string) (all map[string]CostMatrix, err error) {
	pieces, err := parseList(spec, Definitions())
	if err != nil {
		return nil, err
	}
	all = map[string]CostMatrix{}
	for _, p := range pieces {
		if p.of.Name == "cost" {
			if all[p.name], err = ReadCosts(p.argument); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// labelCost is the reward cost:FILE of labels.
func labelCost(s Setup) (LabelReward, error) {
	m, err := ReadCosts(s.Argument)
	if err != nil {
		return LabelReward{}, err
	}
	value := func(action, truth int) float64 { return -m.Of(s.Labels[truth], s.Labels[action]) }
	return LabelReward{Value: value, Expected: func(truth int, probs, grad []float64) float64 {
		sum := 0.0
		for k, p := range probs {
			grad[k] = value(k, truth)
			sum += p * grad[k]
		}
		return sum
	}}, nil
}
