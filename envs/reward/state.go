package reward

import (
	"encoding/json"
	"fmt"
	"slices"
)

// State is the checkpointed state of a list's rewards; it survives JSON exactly.
type State struct {
	Rewards []string                   `json:"rewards"` // reward names
	States  map[string]json.RawMessage `json:"states,omitempty"`
}

// stateOf collects the states of stateful pieces.
func stateOf(pieces []piece, state func(i int) func() any) State {
	s := State{Rewards: names(pieces)}
	for i, p := range pieces {
		of := state(i)
		if of == nil {
			continue
		}
		encoded, err := json.Marshal(of())
		if err != nil {
			panic(fmt.Sprintf("reward %s: cannot encode its state as JSON: %v", p.name, err)) // a bug in the reward
		}
		if s.States == nil {
			s.States = map[string]json.RawMessage{}
		}
		s.States[p.name] = encoded
	}
	return s
}

// restore restores each piece. A state of other rewards is an error and changes nothing.
func (s State) restore(pieces []piece, restore func(i int) func(json.RawMessage) error) error {
	if names := names(pieces); !slices.Equal(s.Rewards, names) {
		return fmt.Errorf("restoring rewards: the checkpoint has rewards %q, the run has %q", s.Rewards, names)
	}
	for i, p := range pieces {
		if _, has := s.States[p.name]; has != (restore(i) != nil) {
			return fmt.Errorf("restoring rewards: the state of %q is missing or unexpected", p.name)
		}
	}
	for i, p := range pieces {
		if from := restore(i); from != nil {
			if err := from(s.States[p.name]); err != nil {
				return fmt.Errorf("restoring reward %q: %w", p.name, err)
			}
		}
	}
	return nil
}
