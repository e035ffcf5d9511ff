package config

import (
	"errors"
	"fmt"

	"github.com/goccy/go-yaml/ast"

	"github.com/rltrain/rltrain/internal/options"
)

// mixtures are the keys under which files of TRL, alignment-handbook and open-r1 describe data sets. A description of one
// data set is read; a mixture of several is refused.
var mixtures = map[string]func(r *fileReader, source Source, node ast.Node) error{
	"datasets": (*fileReader).datasets, "dataset_mixture": (*fileReader).mixture, "dataset_mixer": (*fileReader).mixer, "dataset_splits": (*fileReader).splits,
}

// inDataset is what the keys of a data set's description are called here.
var inDataset = map[string]string{"path": "dataset", "id": "dataset", "name": "dataset_config", "config": "dataset_config", "split": "train_split"}

var errMixture = errors.New("rltrain trains on one data set: keep one, or put the files into a folder")

// datasets reads a list of one data set.
func (r *fileReader) datasets(source Source, node ast.Node) error {
	list, ok := node.(*ast.SequenceNode)
	if !ok || len(list.Values) > 1 {
		return errMixture
	}
	for _, one := range list.Values {
		section, ok := one.(ast.MapNode)
		if !ok {
			return errMixture
		}
		pairs := section.MapRange()
		for pairs.Next() {
			at, key := r.key(pairs.Key())
			value, err := nodeValue(pairs.Value())
			switch name := inDataset[key]; {
			case key == "columns" || key == "weight" || key == "fraction": // of one data set, all of it
			case err != nil || name == "":
				return fmt.Errorf("cannot read %s at %s; name the rows' files as dataset", key, at)
			case value.Syntax != options.Null:
				r.entries = append(r.entries, entry{name, value, source})
			}
		}
	}
	return nil
}

// mixture reads a section with a list of one data set.
func (r *fileReader) mixture(source Source, node ast.Node) error {
	section, ok := node.(ast.MapNode)
	if !ok {
		return errMixture
	}
	pairs := section.MapRange()
	for pairs.Next() {
		switch at, key := r.key(pairs.Key()); key {
		case "datasets":
			if err := r.datasets(source, pairs.Value()); err != nil {
				return err
			}
		case "seed": // of the mixture
		case "test_split_size":
			value, err := scalar(pairs.Value())
			if err != nil {
				return err
			}
			r.entries = append(r.entries, entry{key, value, Source{Layer: File, Name: source.Name + "." + key, Position: at}})
		default:
			return fmt.Errorf("cannot read %s at %s", key, at)
		}
	}
	return nil
}

// mixer reads a section of one data set's name and its share, which must be 1.
func (r *fileReader) mixer(source Source, node ast.Node) error {
	section, ok := node.(ast.MapNode)
	if !ok {
		return errMixture
	}
	n := 0
	pairs := section.MapRange()
	for pairs.Next() {
		share, err := scalar(pairs.Value())
		if n++; n > 1 || err != nil || !sameValue("1", share.Text) {
			return errMixture
		}
		r.entries = append(r.entries, entry{"dataset", options.Value{Text: pairs.Key().GetToken().Value}, source})
	}
	return nil
}

// splits reads the list of the training and the evaluation split.
func (r *fileReader) splits(source Source, node ast.Node) error {
	value, err := nodeValue(node)
	if err != nil || value.Syntax != options.List || len(value.List) < 1 || len(value.List) > 2 {
		return errors.New("must be a list of the training and the evaluation split")
	}
	for i, name := range []string{"dataset_train_split", "dataset_test_split"}[:len(value.List)] {
		r.entries = append(r.entries, entry{name, options.Value{Text: value.List[i]}, source})
	}
	return nil
}
