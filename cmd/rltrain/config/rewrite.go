package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/options"
)

// rewriting reads a name whose meaning depends on its value or on the run: it returns the entries that stand for it, or
// notes it for combine.
type rewriting struct {
	help string // for the documentation, what it sets
	read func(l *loading, e entry) ([]entry, error)
}

var rewritings map[string]rewriting

func init() {
	rewritings = map[string]rewriting{
		"eval_strategy":             {"no: `validation_share` 0; steps, epoch: see `eval_every`", (*loading).evalStrategy},
		"evaluation_strategy":       {"as `eval_strategy`", (*loading).evalStrategy},
		"warmup_steps":              {"the same; below 1, `warmup_ratio`", (*loading).warmupSteps},
		"max_steps":                 {"the same; in RL `num_steps`, divided by the updates of a step; -1 is by epochs", (*loading).maxSteps},
		"loss_type":                 {"in RL `reduction`, or the `algorithm`: cispo, gspo, luspo, sapo, vespo; with preferences `dpo_loss`; in SFT `sft_loss`", (*loading).lossType},
		"epsilon":                   {"`clip_low`, and `clip_high` without `epsilon_high`; with algorithm cispo `ratio_cap`, with gmpo `log_clip_low` and `log_clip_high`", (*loading).epsilon},
		"epsilon_high":              {"`clip_high`; with algorithm cispo `ratio_cap`, with gmpo `log_clip_high`", (*loading).epsilon},
		"beta":                      {"`kl_coef`; with preferences `dpo_beta`; with algorithm rloo also `kl_in_reward` and `kl_type` k1", (*loading).beta},
		"dataset_text_field":        {"`text_column`; text in task chat", (*loading).textField},
		"model_revision":            {"`model` NAME@REVISION", (*loading).combined},
		"reward_funcs":              {"`reward`: TRL's and open-r1's functions by name", (*loading).combined},
		"reward_weights":            {"the weights in `reward`", (*loading).combined},
		"reward_model_name_or_path": {"model:DIR in `reward`", (*loading).combined},
		"report_to":                 {"the same; all is tensorboard,wandb", (*loading).reportTo},
		"metric_for_best_model":     {"the same; eval_ in front is dropped", (*loading).metric},
		"greater_is_better":         {"must agree with `metric_for_best_model`", (*loading).greater},
		"dataset_train_split":       {"`train_split`", (*loading).split},
		"dataset_test_split":        {"`eval_split`", (*loading).split},
		"use_peft":                  {"`tuning`: false → full, true → lora; a reward model is always an adapter with a head", (*loading).peft},
		"use_bias_correction_kl":    {"the same, with `kl_coef` above 0", (*loading).combined},
		"lora_dropout":              {"the same; reward models have none", (*loading).dropout},
		"load_in_4bit":              {"`quantize`: false → none, true → nf4", (*loading).fourBits},
		"save_path":                 {"`output_dir`, unless that is given too", (*loading).savePath},
		"init_lora_weights":         {"the same; true is kaiming", initOfPEFT},
		"label_smoothing_factor":    {"the same, in SFT; 0 may be given in any run", (*loading).offElsewhere},
		"use_dora":                  {"the same, for language models with an adapter; false may be given in any run", (*loading).offElsewhere},
		"neftune_noise_alpha":       {"the same, in SFT; 0 may be given in any run", (*loading).offElsewhere},
		"disable_dropout":           {"true: only SFT has dropout, on the adapter; in RL also false", (*loading).noDropout},
		"shuffle_dataset":           {"rows are shuffled, by seed", (*loading).shuffle},
		"distillation_alpha":        {"`divergence`: 0 → forward, 1 → reverse, else jsd with that `jsd_beta`", (*loading).distillationAlpha},
		"distillation_mode":         {"sampled_token → `divergence` sampled; full_logits: see `distillation_alpha`", (*loading).distillationMode},
		"teacher_prompt_template":   {"`teacher_prompt`, with {solution} for {privileged_context}", teacherPrompt},
		"reprompt_template":         {"`teacher_prompt`", teacherPrompt},
		"project":                   {"`wandb_project`; huggingface is TRL's for trackio", (*loading).project},
		"run_name":                  {"the same, with `report_to` wandb", (*loading).runName},
	}
	for _, name := range []string{"mode", "clip_max", "clip_min", "cap", "correction"} {
		rewritings["vllm_importance_sampling_"+name] = rewriting{"with `async` or `rollout_url`: `importance_sampling`, its `_max` and `_min`; else not needed", (*loading).theirCorrection}
	}
	for _, name := range []string{"sync_ref_model", "ref_model_mixup_alpha", "ref_model_sync_steps"} {
		rewritings[name] = rewriting{"the same, in steps instead of updates; TRL's default may be given without a reference", readWith("sync_ref_model")}
	}
	for _, name := range []string{"entropy_coef_delta", "entropy_coef_max", "entropy_coef_min", "entropy_target"} {
		rewritings[name] = rewriting{"the same; TRL's default may be given without `use_adaptive_entropy`", readWith("use_adaptive_entropy")}
	}
	for _, name := range []string{"top_entropy_quantile", "sapo_temperature_pos", "sapo_temperature_neg", "vespo_k_pos", "vespo_k_neg", "vespo_lambda_pos", "vespo_lambda_neg"} {
		rewritings[name] = rewriting{"the same; TRL's default may be given with another algorithm", (*loading).objectiveOption}
	}
}

// rewrite puts the entries that names stand for in their place.
func (l *loading) rewrite(entries []entry) (all []entry) {
	for _, e := range entries {
		r, ok := rewritings[e.name]
		if !ok || e.value.Syntax == options.Null {
			all = append(all, e)
			continue
		}
		written, err := r.read(l, e)
		if err != nil {
			l.found.add(e.source.errorf("%v", err))
		}
		all = append(all, written...)
	}
	return all
}

// as is an entry under another name with another value.
func (e entry) as(name, value string) entry {
	return entry{name, options.Value{Text: value}, e.source}
}

func (l *loading) evalStrategy(e entry) ([]entry, error) {
	switch e.value.Text {
	case "no", "none", "false", "False":
		if l.set.Find("validation_share") == nil {
			return nil, nil
		}
		return []entry{e.as("validation_share", "0")}, nil
	case "steps", "epoch":
		return nil, nil
	}
	return nil, fmt.Errorf("%v is not one of no, steps, epoch", e.value)
}

func (l *loading) warmupSteps(e entry) ([]entry, error) {
	if share, err := strconv.ParseFloat(e.value.Text, 64); err == nil && share > 0 && share < 1 {
		return []entry{e.as("warmup_ratio", e.value.Text)}, nil
	}
	return []entry{e}, nil
}

func (l *loading) maxSteps(e entry) ([]entry, error) {
	if e.value.Text == "-1" {
		e.value.Text = "0"
	}
	if !l.fresh() {
		return []entry{e}, nil
	}
	n, err := strconv.Atoi(e.value.Text)
	if err != nil || n < 0 {
		return nil, fmt.Errorf("%v is not an integer of at least 0, or -1", e.value)
	}
	delete(l.noted, e.name)
	if n > 0 {
		l.noted[e.name] = e
	}
	return nil, nil
}

func (l *loading) lossType(e entry) ([]entry, error) {
	if l.RL != nil && l.fresh() {
		return []entry{e}, l.checkLoss(e)
	}
	if l.TextSFT == nil && l.Rewarding == nil {
		return []entry{e}, nil
	}
	switch known := l.TextSFT != nil; {
	case known && e.value.Text == "chunked_nll": // which is how nll is computed here
		return []entry{e.as("sft_loss", "nll")}, nil
	case known && (e.value.Text == "nll" || e.value.Text == "dft"):
		return []entry{e.as("sft_loss", e.value.Text)}, nil
	}
	return nil, fmt.Errorf("%v: SFT has the losses nll and dft", e.value)
}

func (l *loading) beta(e entry) ([]entry, error) {
	x, err := strconv.ParseFloat(e.value.Text, 64)
	if l.algorithm.Name != "rloo" || err != nil || !(x > 0) {
		return []entry{e}, nil
	}
	return []entry{e, e.as("kl_in_reward", "true"), e.as("kl_type", "k1")}, nil
}

func (l *loading) textField(e entry) ([]entry, error) {
	if l.set.Find("text_column") == nil && e.value.Text == "text" {
		return nil, nil
	}
	return []entry{e}, nil
}

func (l *loading) peft(e entry) ([]entry, error) {
	on, err := options.ParseBool(e.value)
	if l.Rewarding == nil || err != nil {
		return []entry{e}, nil
	}
	if on == false {
		return nil, errors.New("false: a reward model is an adapter with a head; use true")
	}
	return nil, nil
}

func (l *loading) dropout(e entry) ([]entry, error) {
	if x, err := strconv.ParseFloat(e.value.Text, 64); err == nil && x == 0 && l.Rewarding != nil {
		return nil, nil
	}
	return []entry{e}, nil
}

func (l *loading) noDropout(e entry) ([]entry, error) {
	on, err := options.ParseBool(e.value)
	if err == nil && on == false && (l.Rewarding != nil || l.Pairs != nil) {
		err = errors.New("false: only SFT has dropout, on the adapter; use true")
	}
	return nil, err
}

func (l *loading) fourBits(e entry) ([]entry, error) {
	if on, err := options.ParseBool(e.value); err == nil && on == true {
		l.noted[e.name] = e
	}
	return []entry{e}, nil
}

// savePath is where Unsloth puts another copy of the model.
func (l *loading) savePath(e entry) ([]entry, error) {
	if lastOf("output_dir", l.layers...) == e.value.Text || !slices.ContainsFunc(l.layers, func(entries []entry) bool {
		return slices.ContainsFunc(entries, func(e entry) bool { return e.name == "output_dir" })
	}) {
		return []entry{e}, nil
	}
	l.notes = append(l.notes, e.source.Name+" changes nothing: the model is in output_dir")
	return nil, nil
}

// split names a split of tasks that read rows; the others read the usual splits.
func (l *loading) split(e entry) ([]entry, error) {
	key, usual := "train_split", []string{"train"}
	if e.name == "dataset_test_split" {
		key, usual = "eval_split", []string{"test", "validation"}
	}
	if l.set.Find(key) != nil {
		return []entry{e.as(key, e.value.Text)}, nil
	}
	if !slices.Contains(usual, e.value.Text) {
		return nil, fmt.Errorf("%v: task %s reads the split %s; name another split's file as dataset or eval_dataset", e.value, l.task.Name, usual[0])
	}
	return nil, nil
}

func (l *loading) reportTo(e entry) ([]entry, error) {
	switch {
	case e.value.Text == "all":
		e.value.Text = "tensorboard,wandb"
	case e.value.Syntax == options.List && len(e.value.List) == 0:
		e.value = options.Value{Text: "none"}
	}
	return []entry{e}, nil
}

func (l *loading) metric(e entry) ([]entry, error) {
	e.value.Text = strings.TrimPrefix(e.value.Text, "eval_")
	return []entry{e}, nil
}

func (l *loading) greater(e entry) ([]entry, error) {
	on, err := options.ParseBool(e.value)
	if err != nil {
		return nil, err
	}
	metric := cmp.Or(lastOf("metric_for_best_model", l.layers...), l.Text("metric_for_best_model"))
	if less := strings.HasSuffix(metric, "loss"); metric != "" && on == less {
		return nil, fmt.Errorf("metric %s is better if it is %s", metric, map[bool]string{true: "less", false: "greater"}[less])
	}
	return nil, nil
}

func (l *loading) shuffle(e entry) ([]entry, error) {
	on, err := options.ParseBool(e.value)
	if err == nil && on == false && l.mode == envs.RLOnly {
		err = errors.New("false: prompts are shuffled, by seed; use true")
	}
	return nil, err
}

func (l *loading) project(e entry) ([]entry, error) {
	if e.value.Text == "huggingface" {
		return nil, nil
	}
	return []entry{e}, nil
}

func (l *loading) runName(e entry) ([]entry, error) {
	if to := lastOf("report_to", l.layers...); l.theirNames && !strings.Contains(to, "wandb") && to != "all" && !slices.ContainsFunc(l.layers, reportsToWandB) {
		l.notes = append(l.notes, e.source.Name+" changes nothing without report_to=wandb")
		return nil, nil
	}
	return []entry{e}, nil
}

func reportsToWandB(entries []entry) bool {
	return slices.ContainsFunc(entries, func(e entry) bool {
		return e.name == "report_to" && slices.Contains(e.value.List, "wandb") || e.name == "wandb"
	})
}

// combined notes an entry for combine.
func (l *loading) combined(e entry) ([]entry, error) {
	l.noted[e.name] = e
	return nil, nil
}

// combine sets what noted entries come to together. The sizes of batches are known.
func (l *loading) combine() {
	if e, ok := l.noted["model_revision"]; ok && e.value.Text != "main" {
		switch model := l.set.Find("model"); {
		case strings.Contains(l.General.Model, "@"):
			l.found.add(e.source.errorf("model %s has a revision already", l.General.Model))
		default:
			l.put("model", l.General.Model+"@"+e.value.Text, cmp.Or(l.sources[model.Name], e.source))
		}
	}
	if e, ok := l.noted["max_steps"]; ok {
		n, _ := strconv.Atoi(e.value.Text)
		updates := 1
		for _, key := range []string{"update_epochs", "minibatches"} {
			if count, ok := l.Count(key); ok {
				updates *= count
			}
		}
		switch {
		case n%updates != 0:
			l.found.add(e.source.errorf("counts updates, and a rollout has %d of them here: make %d a multiple of %d", updates, n, updates))
		case !sourceLater(l.sources["num_steps"], e.source):
			l.put("num_steps", strconv.Itoa(n/updates), e.source)
		}
	}
	if steps, epochs := l.sources["num_steps"], l.sources["rl_epochs"]; steps != (Source{}) && (epochs.Layer <= steps.Layer && l.noted["max_steps"].name != "" || epochs.Layer == Theirs) && l.set.Find("rl_epochs") != nil {
		l.set.Find("rl_epochs").Set(0)
		delete(l.sources, "rl_epochs")
	}
	l.correctKL()
	if e, ok := l.noted["load_in_4bit"]; ok && l.set.Find("dtype") != nil && l.set.Find("dtype").Get() == "bf16" {
		l.put("dtype", "auto", e.source) // 4-bit weights multiply as bfloat16
	}
	l.combineRewards()
}

// correctKL sets use_bias_correction_kl, which TRL's defaults turn on whether or not there is a KL.
func (l *loading) correctKL() {
	e, ok := l.noted["use_bias_correction_kl"]
	if !ok {
		return
	}
	on, err := options.ParseBool(e.value)
	switch {
	case err != nil:
		l.found.add(e.source.errorf("%v", err))
	case l.Regularisation == nil:
		l.found.add(e.source.errorf("%s", l.elsewhere(e.name, l.modeOrigin())))
	case l.Regularisation.KLCoef > 0 && !l.Regularisation.KLInReward:
		l.put(e.name, e.value.Text, e.source)
	case on == true && e.source.Layer != Theirs:
		l.notes = append(l.notes, e.source.Name+" changes nothing without a KL in the loss: see kl_coef")
	}
}

// sourceLater tells whether a comes from a higher layer than b.
func sourceLater(a, b Source) bool { return a != (Source{}) && a.Layer > b.Layer }

// put sets an option to a value that other options come to.
func (l *loading) put(key, text string, source Source) {
	o := l.set.Find(key)
	if o == nil {
		l.found.add(source.errorf("%s", l.elsewhere(key, l.modeOrigin())))
		return
	}
	value, err := o.Parse(options.Value{Text: text})
	if err != nil {
		l.found.add(source.errorf("%s would be %s: %v", key, text, err))
		return
	}
	o.Set(value)
	l.sources[key] = source
	if !slices.Contains(l.order, key) {
		l.order = append(l.order, key)
	}
	l.given[key] = assignment{value, source}
}

// rewardFunctions are TRL's and open-r1's reward functions as rewards of ours.
var rewardFunctions = map[string]string{
	"accuracy_reward":               "accuracy",
	"reasoning_accuracy_reward":     "accuracy",
	"think_format_reward":           `expr:'hasPrefix(completion, "<think>") && lastIndexOf(completion, "<think>") == 0 && indexOf(completion, "</think>") > 0'`,
	"get_soft_overlong_punishment":  softOverlong,
	"soft_overlong_punishment":      softOverlong,
	"get_repetition_penalty_reward": "",
	"get_cosine_scaled_reward":      "",
	"accuracy":                      "accuracy",
	"format":                        `expr:'hasPrefix(completion, "<think>\n") && indexOf(completion, "\n</think>\n<answer>\n") > 0 && (hasSuffix(completion, "\n</answer>") || indexOf(completion, "\n</answer>\n") > 0)'`,
	"tag_count":                     `expr:'` + once(`<think>\n`) + ` + ` + once(`\n</think>\n`) + ` + ` + once(`\n<answer>\n`) + ` + ` + once(`\n</answer>`) + `'`,
	"reasoning_steps":               "",
	"cosine":                        "",
	"repetition_penalty":            "",
	"length":                        "",
	"code":                          "",
	"binary_code":                   "",
	"code_format":                   "",
	"ioi_code":                      "",
	"cf_code":                       "",
}

// softOverlong is 0 up to 1024 tokens, −1 from 1280, and linear between.
const softOverlong = `expr:'len(completion) <= 1024 ? 0 : (len(completion) >= 1280 ? -1 : (1024 - len(completion)) / 256)'`

// once scores a quarter if a text has a tag exactly once.
func once(tag string) string {
	return fmt.Sprintf(`(indexOf(completion, "%s") >= 0 && indexOf(completion, "%s") == lastIndexOf(completion, "%s") ? 0.25 : 0)`, tag, tag, tag)
}

// combineRewards sets reward from the functions, their weights and the reward model.
func (l *loading) combineRewards() {
	functions, ok := l.noted["reward_funcs"]
	model, hasModel := l.noted["reward_model_name_or_path"]
	weights, weighted := l.noted["reward_weights"]
	source := functions.source
	if !ok {
		source = model.source
	}
	switch {
	case !ok && !hasModel && weighted:
		l.found.add(weights.source.errorf("needs reward_funcs; or set weights in reward, such as reward=accuracy,format=0.2"))
	case !ok && !hasModel:
		return
	}
	var list []string
	if hasModel {
		list = append(list, "model:"+model.value.Text)
	}
	for _, name := range items(functions.value) {
		reward, known := rewardFunctions[name]
		switch {
		case known && reward == "" || !known && strings.Contains(name, "."):
			l.found.add(functions.source.errorf("%s is Python code: write it as a program, reward=cmd:PROGRAM", name))
		case known && !slices.Contains(list, reward):
			list = append(list, reward)
		case known:
			l.found.add(functions.source.errorf("%s is what another of these functions is here", name))
		default:
			list = append(list, name)
		}
	}
	if given := items(weights.value); weighted && len(given) != len(list) {
		l.found.add(weights.source.errorf("%d weights for %d rewards", len(given), len(list)))
		return
	} else if weighted {
		for i := range list {
			list[i] += "=" + given[i]
		}
	}
	if len(list) > 0 && !sourceLater(l.sources["reward"], source) {
		l.put("reward", strings.Join(list, ","), source)
	}
}

// items are the elements of a list, written in any way.
func items(v options.Value) []string {
	if v.Syntax == options.List || v.Text == "" {
		return v.List
	}
	return strings.Split(v.Text, ",")
}
