package config

import (
	"bytes"
	"slices"

	"rltrain/cmd/rltrain/recipes"
)

// SetTasks adds the tasks that the program was built with to those it has always, before anything is loaded.
func SetTasks(names []string) {
	for _, name := range names {
		if slices.Contains(taskNames, name) {
			continue
		}
		recipe := bytes.Replace(recipes.Own, []byte("task: own "), []byte("task: "+name+" "), 1)
		tasks = append(tasks, task{name, ownTask, recipe})
		taskNames = append(taskNames, name)
	}
	find("task").allowed = taskNames
}

// Own tells whether the task is one that the program was built with.
func (c *Config) Own() bool { return ownTask.of(c.Task) != 0 }
