package rl

import (
	"encoding/json"
	"math"
)

// Record is one answer of a policy as logs/completions.jsonl keeps it: what was asked, what was written, what that
// earned, and what the algorithm made of it.
type Record struct {
	Step    int    `json:"step"`
	Version uint64 `json:"policy_version"` // of the policy that wrote it
	Prompt  int    `json:"prompt"`         // which episode of the task, or row of the data
	Sample  int    `json:"sample"`         // which answer to it

	Shown   string          `json:"shown"`             // the prompt as the policy read it, or the text
	Written string          `json:"written"`           // all that followed, the environment's words included; or the label
	Actions []string        `json:"actions,omitempty"` // what the policy wrote, where there was more than one action
	Stop    string          `json:"stop,omitempty"`
	Truth   string          `json:"truth,omitempty"` // the right label
	Correct bool            `json:"correct"`
	Form    bool            `json:"formatted"`
	Tier    string          `json:"tier,omitempty"` // how the answer was found
	Kind    string          `json:"kind,omitempty"`
	Reward  Number          `json:"reward"`
	Each    []RecordedValue `json:"rewards,omitempty"` // of the list of rewards, where there is one

	Advantage Number   `json:"advantage"`            // mean over its actions; null where it was not learnt from
	Tokens    []string `json:"tokens,omitempty"`     // what the policy wrote, token by token
	PerToken  []Number `json:"advantages,omitempty"` // of each token, where they differ

	// What an advantage depends on beside the rewards of a group, for computing it again.
	PerAction []Number `json:"action_rewards,omitempty"` // where more than the last action is paid
	Value     []Number `json:"values,omitempty"`
	Penalty   []Number `json:"penalties,omitempty"`
	Overlong  float64  `json:"overlong,omitempty"`
	Greedy    *Number  `json:"greedy,omitempty"` // reward of the greedy answer to the prompt
}

// RecordedValue is what one of the rewards gave.
type RecordedValue struct {
	Name  string `json:"name"`
	Value Number `json:"value"`
}

// Number is a float64 that JSON can hold: null stands for what is no number.
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

// Numbers are values that JSON can hold.
func Numbers[T float32 | float64](values []T) []Number {
	var all []Number
	for _, v := range values {
		all = append(all, Number(v))
	}
	return all
}

// Learnt fills in what was made of a sample.
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
	for i, reward := range x.Rewards {
		if i < len(x.Rewards)-1 && reward != 0 {
			r.PerAction = Numbers(x.Rewards)
			break
		}
	}
}
