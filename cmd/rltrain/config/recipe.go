package config

import (
	"strings"
	"sync"

	"github.com/rltrain/rltrain/internal/files"
	"github.com/rltrain/rltrain/lora"
)

// recipe is the settings of a task whose defaults are others for it.
type recipe struct {
	entries []entry
	reasons map[string]string // by key, of those that the recipe gives
}

var (
	recipeLock sync.Mutex
	recipes    = map[string]recipe{} // by name
)

// chooseModel finds whether a task with labels generates them, and whether the run starts from a pretrained language model.
func (ch *choice) chooseModel(layers [][]entry) error {
	kind, given := pick("policy", layers)
	model, named := pick("model", layers)
	language := true
	if ch.task.Labels() {
		ch.writes = ch.task.Plays() && (kind == policyGenerate || given == nil && named != nil)
		language = named != nil && (ch.writes || ch.task.Plays() && kind == policyScore)
	}
	if named == nil {
		usual, err := ch.recipe()
		if err != nil {
			return err
		}
		model = lastOf("model", usual.entries)
	}
	trained, _ := pick("pretrained_model", layers)
	ch.pretrained = language && (model != "" && model != TinyModel && (named != nil || trained == "") || adapted(trained))
	return nil
}

// adapted tells whether a trained policy is an adapter, so that its base model is a pretrained one.
func adapted(folder string) bool {
	return folder != "" && files.Exist(folder, lora.ConfigFile)
}

// recipe is the one of the task that applies.
func (ch choice) recipe() (recipe, error) {
	text, name := ch.task.Recipe, ch.task.Name
	switch {
	case ch.data && ch.task.DataRecipe != "":
		text, name = ch.task.DataRecipe, name+" with --dataset"
	case ch.pretrained && ch.task.ModelRecipe != "":
		text, name = ch.task.ModelRecipe, name+" with a pretrained model"
	}
	recipeLock.Lock()
	defer recipeLock.Unlock()
	if r, ok := recipes[name]; ok || text == "" {
		return r, nil
	}
	entries, _, err := parseFile("recipe of "+name, []byte(text))
	if err != nil {
		return recipe{}, err
	}
	r := recipe{entries: entries, reasons: map[string]string{}}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(line, ": ")
		if _, why, ok := strings.Cut(value, "  # "); ok && !strings.HasPrefix(key, "#") {
			r.reasons[key] = strings.TrimSpace(why)
		}
	}
	recipes[name] = r
	return r, nil
}
