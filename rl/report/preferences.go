package report

import (
	"encoding/json"
	"fmt"

	"github.com/rltrain/rltrain/rl"
)

// preferenceResults is logs/eval_results.json of a stage that learns from preferences, a policy's or a reward model's.
type preferenceResults struct {
	Before   preferenceScores `json:"before"`
	Best     preferenceScores `json:"best"`
	BestStep int              `json:"best_step"`
}

// preferenceScores are of held-out preferences; what a stage does not measure is nil.
type preferenceScores struct {
	N        int          `json:"n"`
	Loss     *estimate    `json:"loss"`
	Accuracy *estimate    `json:"accuracy"`
	Interval *rl.Interval `json:"interval"` // of the accuracy, where that is a bare number
	Margin   *estimate    `json:"margin"`
	Chosen   *estimate    `json:"logps_chosen"`
	Rejected *estimate    `json:"logps_rejected"`
	ECE      *estimate    `json:"ece"`
	Brier    *estimate    `json:"brier"`
	Reward   *estimate    `json:"mean_reward"`
}

// estimate is a figure that is written as a number, or with its interval.
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

// table has the figures before the first step beside those of the weights that are kept.
func (r preferenceResults) table() Table {
	best := fmt.Sprintf("after step %s, the best", Count(int64(r.BestStep)))
	t := Table{Headers: []string{fmt.Sprintf("on %s", Plural(r.Best.N, "preference")), "before", "95 % interval", best, "95 % interval"}}
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
		{"log-probability, chosen", func(s preferenceScores) *estimate { return s.Chosen }},
		{"log-probability, rejected", func(s preferenceScores) *estimate { return s.Rejected }},
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
					interval = fmt.Sprintf("%.4f to %.4f", e.interval[0], e.interval[1])
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
