package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/rltrain/rltrain/internal/nearest"
	"github.com/rltrain/rltrain/internal/options"
)

// objectiveNames are other names of an algorithm with settings: those of papers, TRL, verl and prime-rl.
var objectiveNames = map[string][]string{
	"cispo": {"cispo"}, "gspo": {"gspo"}, "sapo": {"sapo"}, "vespo": {"vespo"},
	"gspo_token":                   {"gspo"},
	"luspo":                        {"gspo", "reduction=sum"},
	"geo_mean":                     {"gmpo"},
	"dppo_tv":                      {"dppo", "trust_region=tv"},
	"dppo_kl":                      {"dppo", "trust_region=kl"},
	"max_rl":                       {"grpo", "advantage_scale=mean"},
	"maxrl":                        {"grpo", "advantage_scale=mean"},
	"opo":                          {reinforce, "baseline=length"},
	"sdft":                         {"distill", "teacher=self", "teacher_context=demonstration"},
	"sdpo":                         {"distill", "teacher=self", "teacher_context=sibling"},
	"remax":                        {reinforce, "baseline=greedy"},
	"reinforce_plus_plus":          {"reinforce++"},
	"reinforce_plus_plus_baseline": {"reinforce++", "plus_baseline=group"},
}

// objective is the algorithm, with its settings, that an entry means by another name; nil if it means none.
func (e entry) objective() []string {
	switch {
	case e.name == "algorithm" || e.name == "loss_type":
		return objectiveNames[e.value.Text]
	case e.name == "importance_sampling_level" && strings.HasPrefix(e.value.Text, "sequence"):
		return []string{"gspo"}
	}
	return nil
}

// objectives puts an algorithm with its settings in the place of the entries that mean one by another name. TRL's command grpo,
// which names an algorithm too, gives way to it.
func objectives(layers [][]entry) [][]entry {
	all := slices.Clone(layers)
	named := false
	for i, entries := range all {
		var kept []entry
		for _, e := range entries {
			written := e.objective()
			if written == nil {
				kept = append(kept, e)
				continue
			}
			named = named || e.name != "algorithm"
			kept = append(kept, e.as("algorithm", written[0]))
			for _, setting := range written[1:] {
				key, value, _ := strings.Cut(setting, "=")
				kept = append(kept, e.as(key, value))
			}
		}
		all[i] = kept
	}
	if !named {
		return all
	}
	for i := range all {
		all[i] = slices.DeleteFunc(all[i], func(e entry) bool { return e.name == "algorithm" && e.value.Text == "grpo" })
	}
	return all
}

// objectiveOption drops the default of an option that only another loss of TRL's trainer reads.
func (l *loading) objectiveOption(e entry) ([]entry, error) {
	if l.set.Find(e.name) != nil || l.trlTrainer() != "grpo" {
		return []entry{e}, nil
	}
	return l.dropUsual(e)
}

// dropUsual drops an entry that says TRL's default for GRPO.
func (l *loading) dropUsual(e entry) ([]entry, error) {
	_, byName := trlOptions()
	usual := byName[e.name].defaults["grpo"]
	given, err := strconv.ParseFloat(e.value.Text, 64)
	number, _ := strconv.ParseFloat(usual, 64)
	if e.value.Text != usual && (err != nil || given != number) {
		return []entry{e}, nil
	}
	l.needless = append(l.needless, e.name)
	return nil, nil
}

// readWith drops the default of an option that nothing reads unless a switch is on.
func readWith(name string) func(l *loading, e entry) ([]entry, error) {
	return func(l *loading, e entry) ([]entry, error) {
		if on, _ := pick(name, l.layers); on != "" && on != "false" {
			return []entry{e}, nil
		}
		return l.dropUsual(e)
	}
}

// epsilon reads the clip range of an objective whose options have other names.
func (l *loading) epsilon(e entry) ([]entry, error) {
	upper, _ := pick("epsilon_high", l.layers)
	alone := e.name == "epsilon" && upper == ""
	switch l.algorithm.Name {
	case "cispo": // whose lower bound TRL does not have
		if alone || e.name == "epsilon_high" {
			return []entry{e.as("ratio_cap", e.value.Text)}, nil
		}
		return nil, nil
	case "gmpo":
		switch {
		case e.name == "epsilon_high":
			return []entry{e.as("log_clip_high", e.value.Text)}, nil
		case alone:
			return []entry{e.as("log_clip_low", e.value.Text), e.as("log_clip_high", e.value.Text)}, nil
		}
		return []entry{e.as("log_clip_low", e.value.Text)}, nil
	}
	return []entry{e}, nil
}

// checkLoss refuses a loss_type of RL that is unknown.
func (l *loading) checkLoss(e entry) error {
	names := slices.Collect(maps.Keys(aliasByName["loss_type"].values))
	if slices.Contains(names, e.value.Text) || l.Learning.Needs().Together {
		return nil
	}
	names = append(names, "cispo", "gspo", "luspo", "sapo", "vespo")
	slices.Sort(names)
	return fmt.Errorf("%v is not one of %s%s", e.value, strings.Join(names, ", "), nearest.Hint(e.value.Text, names, nil))
}

// theirCorrection reads TRL's correction for completions of other policies where there are any.
func (l *loading) theirCorrection(e entry) ([]entry, error) {
	async, _ := pick("async", l.layers)
	servers, _ := pick("rollout_url", l.layers)
	if l.OffPolicy == nil || (async == "" || async == "false") && servers == "" {
		l.needless = append(l.needless, e.name)
		return nil, nil
	}
	switch strings.TrimPrefix(e.name, "vllm_importance_sampling_") {
	case "mode":
		return []entry{e.as("importance_sampling", e.value.Text)}, nil
	case "clip_min":
		return []entry{e.as("importance_sampling_min", e.value.Text)}, nil
	case "clip_max", "cap":
		return []entry{e.as("importance_sampling_max", e.value.Text)}, nil
	}
	on, err := options.ParseBool(e.value)
	if err != nil || on == true {
		return nil, err
	}
	return []entry{e.as("importance_sampling", "none")}, nil
}

// initOfPEFT reads PEFT's true, its usual start.
func initOfPEFT(_ *loading, e entry) ([]entry, error) {
	if switched(e.value) == "true" {
		return []entry{e.as(e.name, "kaiming")}, nil
	}
	return []entry{e}, nil
}

// offElsewhere drops 0 or false where there is no such option.
func (l *loading) offElsewhere(e entry) ([]entry, error) {
	if l.set.Find(e.name) != nil || !sameValue("0", e.value.Text) && switched(e.value) != "false" {
		return []entry{e}, nil
	}
	l.needless = append(l.needless, e.name)
	return nil, nil
}

// distillationAlpha reads the divergence of TRL's self-distillation.
func (l *loading) distillationAlpha(e entry) ([]entry, error) {
	alpha, err := strconv.ParseFloat(e.value.Text, 64)
	mode, _ := pick("distillation_mode", l.layers)
	switch {
	case err != nil || !(alpha >= 0 && alpha <= 1):
		return nil, fmt.Errorf("%v must be a number from 0 to 1", e.value)
	case mode == "sampled_token" && alpha != 1:
		return nil, fmt.Errorf("%v: distillation_mode sampled_token estimates the reverse KL, which is 1", e.value)
	case mode == "sampled_token":
		return nil, nil
	case alpha == 0:
		return []entry{e.as("divergence", "forward")}, nil
	case alpha == 1:
		return []entry{e.as("divergence", "reverse")}, nil
	}
	return []entry{e.as("divergence", "jsd"), e.as("jsd_beta", e.value.Text)}, nil
}

// distillationMode reads which tokens TRL's self-distillation compares.
func (l *loading) distillationMode(e entry) ([]entry, error) {
	switch e.value.Text {
	case "sampled_token":
		return []entry{e.as("divergence", "sampled")}, nil
	case "full_logits":
		return nil, nil
	}
	return nil, fmt.Errorf("%v is not one of full_logits, sampled_token", e.value)
}

// teacherPrompt reads the prompt of a teacher that TRL's self-distillation has.
func teacherPrompt(_ *loading, e entry) ([]entry, error) {
	return []entry{e.as("teacher_prompt", strings.ReplaceAll(e.value.Text, "{privileged_context}", "{solution}"))}, nil
}
