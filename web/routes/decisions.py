"""decisions"""
from fastapi import APIRouter
router = APIRouter()
