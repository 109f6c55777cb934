// A producer and a consumer with franz-go, driven by tests; see programs.py for the lines that it reads and prints.
//
//	client produce SERVERS TOPIC CODEC
//	client consume SERVERS TOPIC GROUP COUNT
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const patience = 60 * time.Second

type header struct {
	Name  string `json:"name"`
	Value []byte `json:"value"`
}

type row struct {
	Key     []byte   `json:"key"`
	Value   []byte   `json:"value"`
	Headers []header `json:"headers"`
}

var printing sync.Mutex

func show(line any) {
	printing.Lock()
	defer printing.Unlock()
	text, err := json.Marshal(line)
	must(err)
	fmt.Println(string(text))
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	servers, topic := os.Args[2], os.Args[3]
	switch os.Args[1] {
	case "produce":
		produce(servers, topic, os.Args[4])
	case "consume":
		count, err := strconv.Atoi(os.Args[5])
		must(err)
		consume(servers, topic, os.Args[4], count)
	default:
		must(fmt.Errorf("unknown command %q", os.Args[1]))
	}
}

func produce(servers, topic, codec string) {
	options := []kgo.Opt{
		kgo.SeedBrokers(servers), kgo.DefaultProduceTopic(topic), kgo.AllowAutoTopicCreation(), kgo.RecordDeliveryTimeout(patience),
	}
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	if codec != "default" {
		options = append(options, kgo.ProducerBatchCompression(codecs[codec]))
	}
	client, err := kgo.NewClient(options...)
	must(err)
	defer client.Close()
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var given row
		must(json.Unmarshal(lines.Bytes(), &given))
		record := &kgo.Record{Key: given.Key, Value: given.Value}
		for _, one := range given.Headers {
			record.Headers = append(record.Headers, kgo.RecordHeader{Key: one.Name, Value: one.Value})
		}
		client.Produce(context.Background(), record, func(_ *kgo.Record, err error) { must(err) })
	}
	must(client.Flush(context.Background()))
}

func consume(servers, topic, group string, count int) {
	held := map[int32]bool{}
	tell := func(_ context.Context, _ *kgo.Client, moved map[string][]int32, holds bool) {
		for _, partition := range moved[topic] {
			if holds {
				held[partition] = true
			} else {
				delete(held, partition)
			}
		}
		partitions := []int32{}
		for partition := range held {
			partitions = append(partitions, partition)
		}
		show(map[string]any{"assigned": partitions})
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(servers), kgo.ConsumeTopics(topic), kgo.ConsumerGroup(group), kgo.BlockRebalanceOnPoll(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.AutoCommitMarks(), kgo.SessionTimeout(6*time.Second), kgo.HeartbeatInterval(500*time.Millisecond),
		kgo.OnPartitionsAssigned(func(c context.Context, k *kgo.Client, m map[string][]int32) { tell(c, k, m, true) }),
		kgo.OnPartitionsRevoked(func(c context.Context, k *kgo.Client, m map[string][]int32) {
			must(k.CommitMarkedOffsets(c))
			tell(c, k, m, false)
		}),
		kgo.OnPartitionsLost(func(c context.Context, k *kgo.Client, m map[string][]int32) { tell(c, k, m, false) }),
	)
	must(err)
	for found := 0; found < count; {
		fetches := client.PollFetches(context.Background())
		for _, failed := range fetches.Errors() {
			must(failed.Err)
		}
		for _, record := range fetches.Records() {
			if found == count {
				break
			}
			headers := []header{}
			for _, one := range record.Headers {
				headers = append(headers, header{one.Key, one.Value})
			}
			show(row{record.Key, record.Value, headers})
			client.MarkCommitRecords(record)
			found++
		}
		client.AllowRebalance()
	}
	must(client.CommitMarkedOffsets(context.Background()))
	client.LeaveGroup()
	client.CloseAllowingRebalance()
}
