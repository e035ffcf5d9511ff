package report

import (
	"encoding/json"
	"fmt"

	"github.com/rltrain/rltrain/rl"
)

// preferenceResults is logs/eval_results.json of DPO or of a reward model.
type preferenceResults struct {
	Before   preferenceScores `json:"before"`
	Best     preferenceScores `json:"best"`
	BestStep int              `json:"best_step"`
}

// preferenceScores are the metrics of held-out pairs. Metrics that the stage does not measure are nil.
type preferenceScores struct {
	N        int          `json:"n"`
	Loss     *estimate    `json:"loss"`
	Accuracy *estimate    `json:"accuracy"`
	Interval *rl.Interval `json:"interval"` // of the accuracy, if that is a plain number
	Margin   *estimate    `json:"margin"`
	Chosen   *estimate    `json:"logps_chosen"`
	Rejected *estimate    `json:"logps_rejected"`
	ECE      *estimate    `json:"ece"`
	Brier    *estimate    `json:"brier"`
	Reward   *estimate    `json:"mean_reward"`
}

// estimate is a metric written as a number or as an object with its interval.
type estimate struct {
	value    float64
	interval *rl.Interval
}

func (e *estimate) UnmarshalJSON(data []byte) error {
	if json.Unmarshal(data, &e.value) == nil {
		return nil
	}
	var whole rl.Estimate
	if err := json.Unmarshal(data, &whole); err != nil {
		return err
	}
	e.value, e.interval = whole.Value, &whole.Interval
	return nil
}

// table compares the metrics before training with those of the saved weights.
func (r preferenceResults) table() Table {
	best := fmt.Sprintf("best, step %s", Count(int64(r.BestStep)))
	t := Table{Headers: []string{fmt.Sprintf("n = %s", Count(int64(r.Best.N))), "before", "95 % CI", best, "95 % CI"}}
	for _, s := range []*preferenceScores{&r.Before, &r.Best} {
		if s.Accuracy != nil && s.Accuracy.interval == nil {
			s.Accuracy.interval = s.Interval
		}
	}
	for _, figure := range []struct {
		name string
		of   func(s preferenceScores) *estimate
	}{
		{"accuracy", func(s preferenceScores) *estimate { return s.Accuracy }},
		{"margin", func(s preferenceScores) *estimate { return s.Margin }},
		{"loss", func(s preferenceScores) *estimate { return s.Loss }},
		{"log-prob of chosen", func(s preferenceScores) *estimate { return s.Chosen }},
		{"log-prob of rejected", func(s preferenceScores) *estimate { return s.Rejected }},
		{"ECE", func(s preferenceScores) *estimate { return s.ECE }},
		{"Brier", func(s preferenceScores) *estimate { return s.Brier }},
		{"mean reward", func(s preferenceScores) *estimate { return s.Reward }},
	} {
		row := []string{figure.name}
		measured := false
		for _, s := range []preferenceScores{r.Before, r.Best} {
			value, interval := "", ""
			if e := figure.of(s); e != nil {
				measured, value = true, fmt.Sprintf("%.4f", e.value)
				if e.interval != nil {
					interval = fmt.Sprintf("%.4g – %.4g", e.interval[0], e.interval[1])
				}
			}
			row = append(row, value, interval)
		}
		if measured {
			t.Rows = append(t.Rows, row)
		}
	}
	return t
}
