// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_rank_server.h"

#include "tests/sim/ledger.h"

namespace talweg::sim {

LocalRank SimRankServer::RankOf(shm::RankConnectionId connection) const {
  return LocalRank{static_cast<uint32_t>(connection.value() % gone_.size())};
}

void SimRankServer::Say(LocalRank rank, Word word) {
  said_.push_back({rank, connections_[rank.value()], std::move(word)});
  hearing_->OnSaid();
}

void SimRankServer::SayGone(LocalRank rank, bool clean, const std::string& text) {
  Say(rank, [this, rank, clean, text](shm::RankEventSink& sink, shm::RankConnectionId connection) {
    gone_[rank.value()] = true;
    sink.OnRankGone(connection, {.local_rank = rank, .clean = clean, .text = text});
  });
}

int SimRankServer::PollSockets(shm::RankEventSink& sink) {
  int count = 0;
  for (auto words = std::exchange(said_, {}); !words.empty(); words.pop_front(), ++count) {
    const Said& said = words.front();
    const uint32_t rank = said.rank.value();
    if (gone_[rank] || connections_[rank] != said.connection) continue;
    said.word(sink, ConnectionOf(said.rank));
  }
  return count;
}

void SimRankServer::Welcome(shm::RankConnectionId connection, const shm::WelcomeData& /*data*/) {
  hearing_->OnWelcome(RankOf(connection));
}

void SimRankServer::Refuse(shm::RankConnectionId connection, shm::RankStatus /*status*/,
                           std::string_view text) {
  const LocalRank rank = RankOf(connection);
  gone_[rank.value()] = true;
  hearing_->OnDisconnected(rank, std::string(text));
}

void SimRankServer::Disconnect(shm::RankConnectionId connection, shm::RankStatus status,
                               std::string_view text) {
  Refuse(connection, status, text);
}

void SimRankServer::ReplyDeclared(shm::RankConnectionId connection, shm::RequestId request,
                                  const shm::DeclaredData& data) {
  hearing_->OnDeclared(RankOf(connection), request.value(), data);
}

void SimRankServer::RefuseDeclaration(shm::RankConnectionId connection, shm::RequestId request,
                                      shm::RankStatus status, std::string_view text) {
  hearing_->OnDeclarationRefused(RankOf(connection), request.value(), status, std::string(text));
}

// Simulated ranks do not push from a device.
void SimRankServer::Garbage(shm::RankConnectionId /*connection*/, const std::string& why,
                            shm::RankEventSink& /*sink*/) {
  throw Violation{"a rank is said to have sent garbage: " + why};
}

uint64_t SimRankServer::PublishStop(shm::RankConnectionId connection, uint64_t stop_at) {
  return hearing_->OnStopPublished(RankOf(connection), stop_at);
}

void SimRankServer::ReplyMembership(shm::RankConnectionId connection, shm::RequestId request,
                                    const shm::RankMembership& answer) {
  hearing_->OnMembership(RankOf(connection), request.value(), answer);
}

void SimRankServer::ReplyTold(shm::RankConnectionId connection, shm::RequestId request,
                              const shm::Told& answer) {
  hearing_->OnTold(RankOf(connection), request.value(), std::string(answer.text));
}

void SimRankServer::PublishCompletion(const Completion& completion) {
  hearing_->OnCompletion(completion);
}

void SimRankServer::FailAll(shm::RankStatus /*status*/, std::string_view text) {
  hearing_->OnJobFailed(std::string(text));
}

}  // namespace talweg::sim
