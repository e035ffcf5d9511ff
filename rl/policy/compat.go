package policy

type (
	LabelConfig  = Config
	TokenConfig  = Config
	RewardConfig = Config
)

var (
	NewLabel        = NewClassifier
	NewToken        = NewCausalLM
	LoadLabel       = LoadClassifier
	LoadToken       = LoadCausalLM
	RandomToken     = RandomCausalLM
	RandomLabel     = RandomClassifier
	ReadTokenFolder = ReadCausalLM
	ReadLabelFolder = ReadClassifier
	IsLabelFolder   = IsClassifierFolder
)
