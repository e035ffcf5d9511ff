// Package recipes holds the default settings of each task, one YAML file a task.
package recipes

import _ "embed"

// Intent is the recipe of the intent task: every setting with its default, in the order of the options' table.
//
//go:embed intent.yaml
var Intent []byte
