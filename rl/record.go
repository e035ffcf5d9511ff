package rl

import (
	"encoding/json"
	"math"
	"slices"

	"github.com/rltrain/rltrain/envs"
)

// Record is one completion in logs/completions.jsonl, with its rewards and advantages.
type Record struct {
	Step    int    `json:"step"`
	Version uint64 `json:"policy_version"` // of the policy
	Prompt  int    `json:"prompt"`         // number of the episode, or row of the data
	Sample  int    `json:"sample"`         // number of the sample

	Shown    string            `json:"shown"`             // the prompt, or the text
	Written  string            `json:"written"`           // everything after it, including text of the environment; or the label
	Actions  []string          `json:"actions,omitempty"` // the completions, if there is more than one action
	Stop     string            `json:"stop,omitempty"`
	Truth    string            `json:"truth,omitempty"` // the correct label
	Correct  bool              `json:"correct"`
	Form     bool              `json:"formatted"`
	Tier     string            `json:"tier,omitempty"` // how the answer was found
	Kind     string            `json:"kind,omitempty"`
	Tools    *envs.ToolUse     `json:"tools,omitempty"`    // nil if the episode has no tools
	Thinking *envs.ThinkingUse `json:"thinking,omitempty"` // nil if the model did not think
	Reward   Number            `json:"reward"`
	Each     []RecordedValue   `json:"rewards,omitempty"` // of each reward in a list

	Advantage Number   `json:"advantage"`            // mean over its actions; null if not learned from
	Tokens    []string `json:"tokens,omitempty"`     // the sampled tokens
	PerToken  []Number `json:"advantages,omitempty"` // of each token, if they differ

	// The other inputs of the advantage, to recompute it.
	PerAction []Number `json:"action_rewards,omitempty"` // if not only the last action has a reward
	Value     []Number `json:"values,omitempty"`
	Penalty   []Number `json:"penalties,omitempty"`
	Overlong  float64  `json:"overlong,omitempty"`
	Greedy    *Number  `json:"greedy,omitempty"` // reward of the prompt's greedy completion
}

// RecordedValue is the value of one reward.
type RecordedValue struct {
	Name  string `json:"name"`
	Value Number `json:"value"`
}

// Number is a float64 in JSON: null if it is not finite.
type Number float64

// MarshalJSON implements json.Marshaler.
func (n Number) MarshalJSON() ([]byte, error) {
	if math.IsNaN(float64(n)) || math.IsInf(float64(n), 0) {
		return []byte("null"), nil
	}
	return json.Marshal(float64(n))
}

// UnmarshalJSON implements json.Unmarshaler.
func (n *Number) UnmarshalJSON(data []byte) error {
	if string(data) == "null" {
		*n = Number(math.NaN())
		return nil
	}
	return json.Unmarshal(data, (*float64)(n))
}

// Numbers converts values.
func Numbers[T float32 | float64](values []T) []Number {
	var all []Number
	for _, v := range values {
		all = append(all, Number(v))
	}
	return all
}

// Learnt fills in rewards and advantages of a sample.
func (r *Record) Learnt(x *Sample) {
	r.Reward, r.Overlong = Number(x.Reward()), x.Overlong
	r.Advantage = Number(math.NaN())
	if len(x.Advantage) > 0 {
		sum, equal := 0.0, true
		for _, a := range x.Advantage {
			sum += float64(a)
			equal = equal && a == x.Advantage[0]
		}
		r.Advantage = Number(sum / float64(len(x.Advantage)))
		if equal {
			r.Advantage = Number(x.Advantage[0])
		} else {
			r.PerToken = Numbers(x.Advantage)
		}
	}
	r.Value, r.Penalty = Numbers(x.Value), Numbers(x.Penalty)
	if n := len(x.Rewards); n > 0 && slices.ContainsFunc(x.Rewards[:n-1], func(reward float64) bool { return reward != 0 }) {
		r.PerAction = Numbers(x.Rewards)
	}
}
