package config

import (
	"cmp"
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/rltrain/rltrain/internal/options"
	"github.com/rltrain/rltrain/rl"
	"github.com/rltrain/rltrain/rl/algo"
	"github.com/rltrain/rltrain/rl/report"
)

// trlTable has the options of TRL 1.16: name, kind, and the default in each trainer's configuration, - where a trainer
// lacks the option. scripts/trl_options.py compares it with the installed package.
//
//go:embed trl.tsv
var trlTable string

// trlOption is an option of TRL.
type trlOption struct {
	name     string
	defaults map[string]string // by trainer, or model and script
}

// trlOptions are the options of TRL, in the order of the table, and by name.
var trlOptions = sync.OnceValues(func() (list []*trlOption, byName map[string]*trlOption) {
	byName = map[string]*trlOption{}
	lines := strings.Split(strings.TrimSpace(trlTable), "\n")
	columns := strings.Split(lines[0], "\t")[2:]
	for _, line := range lines[1:] {
		cells := strings.Split(line, "\t")
		o := &trlOption{name: cells[0], defaults: map[string]string{}}
		for i, value := range cells[2:] {
			if value != "-" {
				o.defaults[columns[i]] = value
			}
		}
		list, byName[o.name] = append(list, o), o
	}
	return list, byName
})

// optionalThere tells whether null is a value of an option in TRL.
func optionalThere(name string) bool {
	_, byName := trlOptions()
	o := byName[name]
	if o == nil {
		return false
	}
	for _, value := range o.defaults {
		if value == "null" {
			return true
		}
	}
	return false
}

// theirs tells whether a name is one of another trainer and not one of ours.
func (e entry) theirs() bool {
	_, byName := trlOptions()
	_, ours := everything().boolean[e.name]
	return !ours && byName[e.name] != nil && !slices.Contains([]string{"report_to", "run_name"}, e.name)
}

// where is the default in each configuration, the most common one first.
func (o *trlOption) where() string {
	by := map[string][]string{}
	for _, trainer := range trlColumns {
		if value, ok := o.defaults[trainer]; ok {
			by[value] = append(by[value], trainer)
		}
	}
	values := slices.SortedFunc(maps.Keys(by), func(a, b string) int {
		return cmp.Or(len(by[b])-len(by[a]), strings.Compare(a, b))
	})
	if len(values) == 1 {
		return code(values[0]) + " (" + strings.Join(by[values[0]], ", ") + ")"
	}
	var parts []string
	for _, value := range values {
		parts = append(parts, code(value)+" ("+strings.Join(by[value], ", ")+")")
	}
	return strings.Join(parts, ", ")
}

// here is what an option is in rltrain.
func (o *trlOption) here() string {
	_, ours := everything().boolean[o.name]
	a, r := aliasByName[o.name], rewritings[o.name]
	switch rule := ruleOf(o.name); {
	case r.read != nil:
		return r.help
	case a != nil && a.values != nil:
		return a.meaning() + ": " + a.valuesText()
	case a != nil:
		return a.meaning()
	case ours && len(ofTheStage[o.name]) > 0:
		return "the same; with `--mode rl_only` " + code(ofTheStage[o.name][0])
	case ours:
		return "the same"
	case isSection(o.name):
		return "its keys: " + code(strings.Join(slices.Sorted(maps.Keys(sections[o.name])), "`, `"))
	case rule != nil:
		return rule.here()
	}
	return ""
}

// here is what a name is in rltrain.
func (r *rule) here() string {
	switch {
	case r.any:
		return "not needed: " + r.why
	case r.values != nil:
		text := "only " + code(strings.Join(r.values, "`, `"))
		if r.near != nil {
			text += ", or with a note " + code(strings.Join(r.near, "`, `"))
		}
		return text + ": " + r.why
	}
	return "refused: " + r.why
}

// trlColumns are the trainers of the table, and TRL's configurations of the model and the script.
var trlColumns = []string{"sft", "dpo", "kto", "grpo", "rloo", "reward", "model", "script"}

// trlTrainer is TRL's trainer that does what a run does; "" if there is none.
func (l *loading) trlTrainer() string {
	loss, _ := pick("dpo_loss", l.layers)
	switch {
	case l.TextSFT != nil:
		return "sft"
	case l.Rewarding != nil:
		return "reward"
	case l.Pairs != nil && loss == "kto":
		return "kto"
	case l.Pairs != nil:
		return "dpo"
	case l.fresh() && l.algorithm.Name == "rloo":
		return "rloo"
	case l.fresh() && slices.Contains([]string{"grpo", "gspo", "cispo", "sapo", "vespo", "gmpo"}, l.algorithm.Name):
		return "grpo"
	}
	return ""
}

// trlTrainers are the names of TRL's configurations.
var trlTrainers = map[string]string{"sft": "SFTConfig", "dpo": "DPOConfig", "kto": "KTOConfig", "grpo": "GRPOConfig", "rloo": "RLOOConfig", "reward": "RewardConfig"}

// notDefaults are options whose defaults in TRL say nothing of what is learned: names, folders, logs and what follows from
// others.
var notDefaults = []string{"output_dir", "run_name", "project", "report_to", "resume_from_checkpoint", "model_name_or_path", "dataset_name", "dataset_config",
	"logging_steps", "save_steps", "save_total_limit", "log_completions", "bf16", "fp16", "load_in_4bit", "load_in_8bit", "dtype", "seed", "use_cpu", "ddp_timeout",
	"gradient_checkpointing", "reward_funcs", "reward_weights", "dataset_text_field"}

// trlImplied are defaults that TRL has without an option of that value.
var trlImplied = []entry{{name: "warmup_ratio", value: options.Value{Text: "0"}}, {name: "lora_target_modules"}}

// trlDefaults are the defaults of TRL's trainer, as far as an option here has them.
func trlDefaults(trainer string) []entry {
	list, _ := trlOptions()
	entries := slices.Clone(trlImplied)
	for _, o := range list {
		value, ok := o.defaults[trainer]
		if !ok {
			value, ok = o.defaults["model"]
		}
		if !ok || value == "null" || slices.Contains(notDefaults, o.name) || ruleOf(o.name) != nil && aliasByName[o.name] == nil {
			continue
		}
		value = strings.TrimSuffix(strings.TrimPrefix(value, "["), "]")
		entries = append(entries, entry{name: o.name, value: options.Value{Text: value}})
	}
	for i := range entries {
		entries[i].source = Source{Layer: Theirs, Name: "--defaults trl"}
	}
	return entries
}

// theirDefaults reads the layer of TRL's defaults. What a run has no option for is left out.
func (l *loading) theirDefaults(trainer string) {
	real := l.found
	l.found = &faults{}
	entries := trlDefaults(trainer)
	if l.algorithm.Name == "gspo" { // to which the default loss_type does not apply
		entries = slices.DeleteFunc(entries, func(e entry) bool { return e.name == "loss_type" })
	}
	l.layer(entries)
	l.found = real
}

// autos are what auto means with algorithm grpo.
var autos = map[string]string{"advantage_scale": string(rl.ScaleGroup), "reduction": algo.ReduceToken}

// difference is a default that is another in TRL's trainer.
type difference struct{ option, ours, theirs string }

// differences are the defaults in which this run differs from TRL's trainer, and which nobody gave.
func (l *loading) differences() (found []difference) {
	var ignored faults
	layers := append([][]entry{{{"defaults", options.Value{Text: "trl"}, Source{Layer: Theirs}}}}, l.layers...)
	theirs := loadAll(layers, &ignored)
	if theirs == nil || !ignored.none() {
		return nil
	}
	for _, o := range l.set.All() {
		other := theirs.set.Find(o.Name)
		if l.sources[o.Name] != (Source{}) || theirs.sources[o.Name].Layer != Theirs || !l.set.Applies(o) || other == nil || !theirs.set.Applies(other) {
			continue
		}
		ours, its := yamlValue(o.Get()), yamlValue(other.Get())
		if auto := autos[o.Name]; ours == "auto" && auto != "" {
			ours = auto
		}
		switch {
		case o.Name == "defaults":
		case o.Name == "tuning":
			if l.FullTuning() != theirs.FullTuning() {
				found = append(found, difference{"tuning", "lora", "full"})
			}
		case o.Name == "rl_epochs" && l.sources["num_steps"] == Source{} && its != ours:
			found = append(found, difference{"num_steps", fmt.Sprint(l.Rounds.Steps), its + " epochs"})
		case o.Name != "rl_epochs" && its != ours:
			found = append(found, difference{o.Name, ours, its})
		}
	}
	return found
}

// noteDifferences says where defaults differ from TRL's to those who use its names.
func (l *loading) noteDifferences(trainer string) {
	var parts []string
	for _, d := range l.differences() {
		parts = append(parts, fmt.Sprintf("%s %s (%s)", d.option, d.ours, d.theirs))
	}
	if parts != nil {
		l.notes = append(l.notes, "differs from TRL's "+trlTrainers[trainer]+": "+strings.Join(parts, ", ")+"; --defaults trl takes theirs")
	}
}

// DefaultsTable are the defaults that are others in TRL, for a pretrained language model.
func DefaultsTable() string {
	var rows [][]string
	for _, run := range []struct{ trainer, args string }{
		{"sft", "--task chat"}, {"dpo", "--task preference"}, {"reward", "--mode reward_model"},
		{"grpo", "--task prompts --algorithm grpo"}, {"rloo", "--task prompts --algorithm rloo"},
	} {
		var found faults
		layers := [][]entry{flagEntries(append(strings.Fields(run.args), "--dataset", "d", "--model", "m"), &found)}
		l := loadAll(layers, &found)
		if l == nil || !found.none() {
			panic(found.err())
		}
		for _, d := range l.differences() {
			rows = append(rows, []string{trlTrainers[run.trainer], code(d.option), code(d.ours), code(d.theirs)})
		}
	}
	return report.NarrowMarkdownTable([]string{"trainer", "option", "rltrain", "TRL"}, rows)
}
