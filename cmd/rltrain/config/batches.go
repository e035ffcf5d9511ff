package config

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/rltrain/rltrain/envs"
)

// Names that say the size of an update in several parts, as TRL and transformers do. They are worked out together when
// all else is known. Answers are counted, not prompts.
const (
	accumulation  = "gradient_accumulation_steps" // batches of an update
	perDevice     = "per_device_train_batch_size" // rows, or answers, of a batch
	perGeneration = "steps_per_generation"        // batches of a rollout
	perRollout    = "generation_batch_size"       // answers of a rollout
)

// partOfABatch tells whether a name is one of those in this run. Where turns are replayed, and where a batch has rows,
// the size of a batch is an option by itself.
func (l *loading) partOfABatch(name string) bool {
	switch name {
	case accumulation:
		return !l.replays()
	case perDevice, perGeneration, perRollout:
		return !l.replays() && l.fresh()
	}
	return false
}

// fresh tells whether answers that were just sampled are all that is learnt from.
func (l *loading) fresh() bool {
	return l.mode == envs.RLOnly && l.set.Find("prompts_per_step") != nil && l.set.Find("samples_per_prompt") != nil
}

// part notes one of those names.
func (l *loading) part(e entry) error {
	n, err := strconv.Atoi(e.value.Text)
	if err != nil || n < 1 || n > 1<<20 {
		return errors.New("must be an integer from 1 to 1048576")
	}
	l.parts[e.name] = assignment{n, e.source}
	return nil
}

// batches sets the options that those names come to.
func (l *loading) batches() {
	for name, a := range l.parts { // what somebody gave goes before TRL's defaults
		for _, key := range []string{"prompts_per_step", "minibatches"} {
			if given, ok := l.given[key]; ok && a.source.Layer == Theirs && given.source.Layer > Theirs {
				delete(l.parts, name)
			}
		}
	}
	var named []string // that were given
	for _, name := range []string{accumulation, perGeneration, perDevice, perRollout} {
		if _, ok := l.parts[name]; ok {
			named = append(named, name)
		}
	}
	if len(named) == 0 {
		return
	}
	size := func(name string) int {
		if a, ok := l.parts[name]; ok {
			return a.value.(int)
		}
		return 1
	}
	source := l.parts[named[0]].source
	put := func(key string, n int) { l.put(key, strconv.Itoa(n), source) }
	number := func(key string) int {
		n, _ := strconv.Atoi(fmt.Sprint(l.set.Find(key).Get()))
		return n
	}
	if !l.fresh() {
		key := "batch_size"
		if l.mode == envs.RLOnly && l.set.Find(key) == nil {
			key = "rl_batch_size"
		}
		if l.set.Find(key) == nil {
			put(key, 0)
			return
		}
		put(key, number(key)*size(accumulation))
		return
	}
	if whole, ok := l.parts[perRollout]; ok {
		answers, group, device := whole.value.(int), number("samples_per_prompt"), l.parts[perDevice]
		switch {
		case answers%group != 0:
			l.found.add(whole.source.errorf("%d completions per step are not a multiple of %d samples per prompt", answers, group))
			return
		case device.value == nil:
			put("prompts_per_step", answers/group)
			return
		case answers%device.value.(int) != 0:
			l.found.add(whole.source.errorf("%d completions per step are not a multiple of %d completions per batch", answers, device.value))
			return
		}
		l.parts[perGeneration] = assignment{answers / device.value.(int), whole.source}
	}
	batches := size(accumulation)
	if _, ok := l.parts[perGeneration]; ok {
		if batches = size(perGeneration); batches%size(accumulation) != 0 {
			l.found.add(source.errorf("%d batches per rollout are not a multiple of %d batches per update", batches, size(accumulation)))
			return
		}
		put("minibatches", batches/size(accumulation))
	}
	if _, ok := l.parts[perDevice]; !ok {
		put("prompts_per_step", number("prompts_per_step")*batches)
		return
	}
	answers, group := size(perDevice)*batches, number("samples_per_prompt")
	_, said := l.given["prompts_per_step"]
	switch {
	case said:
		l.found.add(l.parts[perDevice].source.errorf("prompts_per_step already sets the prompts of a step; keep one of the two"))
	case answers%group != 0:
		l.found.add(l.parts[perDevice].source.errorf("%d × %d completions per step are not a multiple of %d samples per prompt; set prompts_per_step and samples_per_prompt", size(perDevice), batches, group))
	default:
		put("prompts_per_step", answers/group)
	}
}
