"""kill"""
from fastapi import APIRouter
router = APIRouter()
